"""What is right: load, check, compile and decide a namespace policy. Imports only `commands`."""

"""One policy for many instances: where it comes from, when it has changed, and how old it is."""

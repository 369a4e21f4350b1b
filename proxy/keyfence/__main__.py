"""`python -m keyfence` is the command `keyfence`."""

from keyfence.cli.main import main

if __name__ == "__main__":
    main()

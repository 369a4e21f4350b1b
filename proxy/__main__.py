"""`python -m proxy` is the command `keyfence`."""

from .cli import main

if __name__ == "__main__":
    main()

"""One client and its ordered queue of reply slots. No I/O. Imports `wire`, `commands` and `policy`."""

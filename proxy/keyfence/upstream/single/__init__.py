"""A whole cluster behind one address: each command of a plain client goes to the node that has its key."""

"""The admin listener: one table of routes, who may use them, and the client that asks them."""

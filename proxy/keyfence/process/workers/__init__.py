"""Several processes that serve clients, below one that looks after them."""

"""Worker processes that serve clients, and the parent that starts and replaces them."""

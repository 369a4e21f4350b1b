"""The tables that run: what the compiler made, and questions about it. Nothing is evaluated here."""

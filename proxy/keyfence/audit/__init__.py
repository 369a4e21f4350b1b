"""The keys that a Redis holds: what the policy says about them, and their move to the forms that it wants."""

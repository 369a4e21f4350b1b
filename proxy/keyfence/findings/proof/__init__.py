"""What evidence is worth: the basis that it was drawn under, and what has changed since."""

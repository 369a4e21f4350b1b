"""What the project is made and tried with; no part of what is installed."""

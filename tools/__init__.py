"""Tools for building and testing the project. They are not installed."""

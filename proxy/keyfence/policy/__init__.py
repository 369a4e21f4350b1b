"""The policy: its rooms read, compile, evaluate and enforce it.

This folder holds the values that they share.
"""

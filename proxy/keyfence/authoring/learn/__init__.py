"""Drafts a policy from evidence of what services do."""

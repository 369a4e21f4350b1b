"""The commands that sign and publish a policy: key, verify, push, history, rollback."""

"""The servers whose keys are audited: connections to them, and what they say about themselves."""

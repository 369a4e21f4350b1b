"""The configuration: how one environment runs a policy."""

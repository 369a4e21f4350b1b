"""The commands on the way from observe to enforce: findings, readiness, what would break."""

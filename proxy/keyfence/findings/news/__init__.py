"""What keyfence tells people by itself: findings as they come, and digests by day or week."""

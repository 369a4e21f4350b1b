"""The nodes of a Redis Cluster, and the addresses of keyfence that stand for them. No I/O."""

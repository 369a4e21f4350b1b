"""What commands and keys mean on a Redis Cluster, seen from a single Redis."""

#!/bin/sh
# What the Redis of the shop holds already: orders of the old shop, and keys that people have forgotten.
# Its arguments are those of redis-cli, such as -p 6379.
{
  for order in $(seq 1 20); do
    echo "HSET order-$order customer $((1000 + order)) total_cents 1999 placed 1650000$((100 + order)) state paid"
  done
  echo "SET shop:order:next 1000 NX"
  echo "SET shop:search:da39a3ee5e6b4b0d3255bfef95601890afd80709 []"
  echo "SET tmp:import:2024 done"
} | redis-cli "$@" >/dev/null

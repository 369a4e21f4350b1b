#!/bin/sh
# Plays one service of the shop again and again: a round each minute. All services take the minute's number as
# their seed, so they meet in the same round. A round that fails, because another service is late for example, is
# reported, and the next one begins.
#
#   SECOND=10 rounds.sh COMMAND...      begin at this second of each minute; the catalog begins at 0
set -u
while :; do
    sleep $(((60 + ${SECOND:-0} - $(date +%s) % 60) % 60))
    "$@" --orders 30 --seed $(($(date +%s) / 60)) || echo "rounds: $* failed"
    sleep 1
done

"""Failovers with clients at work.

Rule: each failover has new servers (a primary, two replicas, three Sentinels) and a new keyfence. The same
clients work through keyfence and, as a control, straight at the primary that the Sentinels name. No client
tries again by itself, so that each lost connection counts, and nothing is written twice on purpose.

A graceful failover is one without loss: the primary holds back writes (CLIENT PAUSE) until a replica has all
of them; then the Sentinels are told to fail over. In a crash the primary is killed; what it had confirmed
and not yet replicated is lost by Redis itself.
"""

"""Seeds of schedules that once broke an invariant, each with its cause. The tests play them in each run.

A seed plays another schedule once the models draw otherwise. So a fault of keyfence's gets a test of its own
where it lies, too.
"""

from __future__ import annotations

FOUND = {
    200: "writes waited for ever on a node that handed over before it was the primary: a fault of the models",
    62775082039182: "a connection was being made when keyfence ended, which its time limit ends",
    153985645565493: "a subscriber's messages were under way for long, twice: a fault of the invariant",
    226590209311865: "a connection that was kept for its id while its client shared another led to a replica",
    81341872571713: "a connection was taken by a keyfence that had ended: a fault of the network",
    70858645803503: "a client left a drained connection on which its replies were held for a barrier",
    105453150852008: "a former primary answered READONLY to a client that had gone, and nobody heard it",
    242005063870650: "what a Sentinel said between two subscriptions was asked for seconds later",
    254788870123741: "a client that had given up came late and was not waited for: a fault of the invariant",
    84094235995811: "a failover back within minutes was taken for a name whose answers take turns",
    80740339574596: "a client that had gone left a connection that waited for the end of the outage",
    282: "a read came from a replica that is behind, as a name led there: allowed without Sentinels",
}

# The same before a cluster (`--cluster`).
FOUND_BEFORE_CLUSTERS = {
    6: "CLUSTERDOWN within a transaction was taken for the answer to EXEC, which was sent again",
    9: "WATCH was redirected, and MULTI went to the node that had refused it",
    92541126062874: "a pause counted in full though a change had cut it short: a command was given up early",
    196011496843095: "an error that came in pieces had the beginning of MOVED behind it, which was passed on",
    29554512968544: "a command was given up after six hops, while the node that they named was not known yet",
    280916263960143: "a command with keys of several hash slots was taken for overtaken: no CROSSSLOT",
    144878072737535: "a command that had waited for a failover had no patience left for a node not known yet",
    38663365273979: "a client sent PING to a node that had left, if it had no hash slot any more",
    112754140360323: "a client that had only introduced itself waited for a node that had left",
}

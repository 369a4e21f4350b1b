"""A cluster that changes while clients work: hash slots move, replicas take over, masters die or stand still.

Rule: all clients work at once, on keys of their own, on three paths: a plain client at keyfence's one address
(`expose: single`), a client for clusters at keyfence's listeners, and the same one straight at the nodes, as
the control. Each client is a process with its library's default settings. It writes rising values that name
their key, and reads them back, so that a reply of another request and a value that fell are seen.
"""

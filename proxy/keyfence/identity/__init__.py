"""Which service a client is: the evidence for it, its sources, and the order in which they count."""

"""Which names a pattern, a channel or a channel pattern can mean, and who may use all of these."""

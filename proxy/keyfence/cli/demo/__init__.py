"""`keyfence demo`: a minute of four services' traffic, mistakes included, through a real keyfence."""

"""The page that the admin listener serves: plain values in, HTML out."""

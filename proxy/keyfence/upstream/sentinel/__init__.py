"""Who the primary is, as Sentinels say."""

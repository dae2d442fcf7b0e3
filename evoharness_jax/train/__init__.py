"""Learning from episodes: supervised, then by cost-aware policy gradient."""

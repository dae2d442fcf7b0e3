"""Playing episodes: generation, sampling, policies and the one loop."""

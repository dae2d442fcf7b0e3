"""Experience between episodes: the bank on disk, and how evidence changes it."""

"""Measurements, one JSON line each, with the peers in the same run."""

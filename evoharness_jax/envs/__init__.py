"""Environments: the adapter contract, the response grammar, and what joins by it."""

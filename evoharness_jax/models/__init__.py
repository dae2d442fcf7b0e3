"""The decoder, its weights, its tokens and its low-rank adapters."""

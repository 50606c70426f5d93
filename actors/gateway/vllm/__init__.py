"""vLLM's own calls."""

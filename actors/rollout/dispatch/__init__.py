"""Which instance gets which request, and when a request moves."""

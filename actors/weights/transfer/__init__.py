"""How versions come from host to host: publication, sources, relays, pulls."""

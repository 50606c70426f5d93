"""Messages between actors: structs, and no behaviour."""

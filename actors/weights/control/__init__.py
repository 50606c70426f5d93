"""The page in shared memory that an engine's process reads."""

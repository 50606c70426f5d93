"""The builtin engine, on torch."""

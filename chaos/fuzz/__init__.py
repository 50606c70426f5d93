"""Fuzzing of every decoder: what none of them may do, whatever the bytes."""

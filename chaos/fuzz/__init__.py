"""Fuzzing of every decoder, with the rules that hold for any bytes."""

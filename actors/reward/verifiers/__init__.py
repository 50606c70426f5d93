"""Verifiers: what a response is worth. Each has a function that runs inside the sandbox and nowhere else."""

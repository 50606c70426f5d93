"""Verifiers: scores of responses. Each has a function that runs only in the sandbox."""

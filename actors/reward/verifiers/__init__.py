"""Verifiers: scores of responses. Each runs a function only in the sandbox."""

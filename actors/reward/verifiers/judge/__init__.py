"""A language model as a verifier: policies, prompt and answer, and the adapter that calls it."""

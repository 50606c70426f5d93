"""Makes the helpers of this folder importable for the tests below it."""

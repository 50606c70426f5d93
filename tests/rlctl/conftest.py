"""So that the tests below this folder find its helpers."""

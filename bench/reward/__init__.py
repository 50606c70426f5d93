"""Cost of running model-written programs: `python -m bench.reward.sandbox`."""

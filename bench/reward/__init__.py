"""What running programs of a model costs: `python -m bench.reward.sandbox`."""

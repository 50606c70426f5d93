"""What a front of inference servers costs: `rlctl gateway` beside sglang-router, with a death behind each.

`python -m bench.gateway` needs the environment of `make bench-peers` (the router) and, for real servers,
that of `make engine-sglang`.
"""

"""Cost of a front of inference servers: `rlctl gateway` beside sglang-router.

With a server's death behind each. `python -m bench.gateway` needs the environment of `make bench-peers` (the
router) and, for real servers, that of `make engine-sglang`.
"""

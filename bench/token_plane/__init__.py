"""Tokens into the manager: ours, journaled and acknowledged, beside an HTTP router's event streams.

`python -m bench.token_plane`. `cluster` starts the manager as production does, `firehose` are the instances
that send to it, `on_router` measures the peer, `memory` what a request in flight costs; `page` and `figure`
write the section of docs/benchmarks.md.
"""

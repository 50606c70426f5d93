"""Token-plane bench: journaled tokens beside an HTTP router's event streams.

Every frame of ours is acknowledged. `python -m bench.token_plane`. `cluster` starts the manager as production
does, `firehose` has the sending instances, `on_router` measures the peer, `memory` the cost of a request in
flight; `page` and `figure` write the section of docs/benchmarks.md.
"""

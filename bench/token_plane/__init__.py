"""Token-plane bench: journaled and acknowledged tokens beside an HTTP router's streams.

`python -m bench.token_plane`. `cluster` starts the manager as production does, `firehose` has the sending
instances, `on_router` measures the peer, `memory` the cost of a request in flight; `page` and `figure` write
the section of docs/benchmarks.md.
"""

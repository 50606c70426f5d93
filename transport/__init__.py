"""Ground floor: bytes between processes. Knows no actor.

Rooms: `wire` (the seam), `mesh` and `loopback` (its carriers), `envelope`, `keys`; `token_stream`; `bulk`.
"""

"""Ground floor: bytes between processes. Knows no actor.

Rooms: `wire` (the seam), `mesh` and `loopback` (its carriers); `links` (delivery over any wire: `link_table`,
`link_hearing`, `link_upkeep`, `link_end`, `session`) with `control_frame` and `envelope`; `keys`;
`token_stream`; `bulk`.
"""

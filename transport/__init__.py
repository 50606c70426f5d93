"""Transport layer: bytes between processes, without knowledge of actors.

Modules: `wire` (the interface), `mesh` and `loopback` (its carriers); `links` (delivery over any wire, with
`link_table`, `link_receiver`, `link_upkeep`, `link_end` and `session`), `control_frame` and `envelope`;
`keys`; `token_stream`; `bulk`.
"""

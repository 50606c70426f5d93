"""Watched and Watcher: records of watched processes and of watching ones.

`watches` uses them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gleaner.supervisor.watch.detector import Detector
from gleaner.transport.wire import Peer, Route

if TYPE_CHECKING:
    from gleaner.supervisor.cell import Cell

Life = tuple[str, int]
"""A name and its incarnation."""


@dataclass(slots=True)
class Watched:
    """Another process, in which something is watched from here."""

    peer: Peer
    detector: Detector
    broken: bool = False  # its link, right now
    suspected: bool = False
    watched: dict[Life, list[Cell]] = field(default_factory=dict)
    fresh: list[Life] = field(default_factory=list)  # not sent yet


@dataclass(slots=True)
class Watcher:
    """Another process that watches actors of this one."""

    peer: Peer
    route: Route  # its return route
    heard_s: float
    watched: set[Life] = field(default_factory=set)

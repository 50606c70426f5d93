"""User side of Gleaner: client library, command line, live view and run reports.

`publisher`, `connect` and the like are `gleaner`'s; scripts that import them from here go on working.
"""

from typing import TYPE_CHECKING

import gleaner

if TYPE_CHECKING:
    from gleaner import CannotPublish, Cluster, connect, publisher

__all__ = ["CannotPublish", "Cluster", "connect", "publisher"]


def __getattr__(name: str) -> object:
    """As of `gleaner`, imported on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(gleaner, name)

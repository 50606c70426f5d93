"""Gleaner: RL post-training with rollouts on machines that may vanish at any instant.

What a user's script needs is here, and loaded when it is asked for: `import gleaner` alone reads no other
file. Actors of your own are written with `gleaner.supervisor`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gleaner.rlctl.blocking_publisher import Publisher as publisher  # called like `connect`
    from gleaner.rlctl.client import Cluster, connect
    from gleaner.rlctl.transfer_agent import CannotPublish

__all__ = ["CannotPublish", "Cluster", "connect", "publisher"]

_PLACES = {
    "CannotPublish": ("rlctl.transfer_agent", "CannotPublish"),
    "Cluster": ("rlctl.client", "Cluster"),
    "connect": ("rlctl.client", "connect"),
    "publisher": ("rlctl.blocking_publisher", "Publisher"),
}


def __getattr__(name: str) -> object:
    """What `__all__` names, when it is asked for: `rlctl.integrations` live in environments that lack what it
    imports."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, own = _PLACES[name]
    return getattr(import_module(f"{__name__}.{module}"), own)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""The user's side: client library, command line, live view and reports of runs."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlctl.client import Cluster, connect

__all__ = ["Cluster", "connect"]


def __getattr__(name: str) -> object:
    """The client, when it is asked for: `integrations` live in environments that lack what it imports."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rlctl import client

    return getattr(client, name)

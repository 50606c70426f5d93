"""User side of Gleaner: client library, command line, live view and run reports."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gleaner.rlctl.blocking import Publisher as publisher  # called like `connect`
    from gleaner.rlctl.client import Cluster, connect
    from gleaner.rlctl.publishing_home import CannotPublish

__all__ = ["CannotPublish", "Cluster", "connect", "publisher"]

_PLACES = {
    "CannotPublish": ("publishing_home", "CannotPublish"),
    "Cluster": ("client", "Cluster"),
    "connect": ("client", "connect"),
    "publisher": ("blocking", "Publisher"),
}


def __getattr__(name: str) -> object:
    """Import the client on first use: `integrations` run in environments that lack the client's imports."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, own = _PLACES[name]
    return getattr(import_module(f"rlctl.{module}"), own)

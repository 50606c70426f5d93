"""The user's side: client library, command line, live view and reports of runs."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlctl.blocking import Publisher as publisher  # called like `connect`
    from rlctl.client import Cluster, connect
    from rlctl.publishing_home import CannotPublish

__all__ = ["CannotPublish", "Cluster", "connect", "publisher"]

_PLACES = {
    "CannotPublish": ("publishing_home", "CannotPublish"),
    "Cluster": ("client", "Cluster"),
    "connect": ("client", "connect"),
    "publisher": ("blocking", "Publisher"),
}


def __getattr__(name: str) -> object:
    """The client, when it is asked for: `integrations` live in environments that lack what it imports."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, own = _PLACES[name]
    return getattr(import_module(f"rlctl.{module}"), own)

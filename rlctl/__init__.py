"""The user's side: client library, command line, live view and reports of runs."""

from rlctl.client import Cluster, connect

__all__ = ["Cluster", "connect"]

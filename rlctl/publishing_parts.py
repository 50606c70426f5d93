"""`gleaner.rlctl.sharded_publisher` under its former name."""

from gleaner.rlctl.sharded_publisher import OwnParts, Ranks

__all__ = ["OwnParts", "Ranks"]

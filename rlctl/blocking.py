"""`gleaner.rlctl.blocking_publisher` under its former name."""

from gleaner.rlctl.blocking_publisher import Publisher

__all__ = ["Publisher"]

"""`gleaner.rlctl.transfer_agent` under its former name."""

from gleaner.rlctl.transfer_agent import CannotPublish

__all__ = ["CannotPublish"]

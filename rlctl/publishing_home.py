"""`gleaner.rlctl.transfer_agent` under its former name."""

from gleaner.rlctl.transfer_agent import CannotPublish
from gleaner.supervisor.renamed import report

__all__ = ["CannotPublish"]

report(__name__, "gleaner.rlctl.transfer_agent")

"""`gleaner.rlctl.sharded_publisher` under its former name."""

from gleaner.rlctl.sharded_publisher import OwnParts, Ranks
from gleaner.supervisor.renamed import report

__all__ = ["OwnParts", "Ranks"]

report(__name__, "gleaner.rlctl.sharded_publisher")

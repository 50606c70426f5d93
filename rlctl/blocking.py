"""`gleaner.rlctl.blocking_publisher` under its former name."""

from gleaner.rlctl.blocking_publisher import Publisher
from gleaner.supervisor.renamed import report

__all__ = ["Publisher"]

report(__name__, "gleaner.rlctl.blocking_publisher")

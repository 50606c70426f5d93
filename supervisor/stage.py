"""`gleaner.supervisor.actor_test_kit` under its former name."""

from gleaner.supervisor.actor_test_kit import ActorTestKit as Stage
from gleaner.supervisor.renamed import report

__all__ = ["Stage"]

report(__name__, "gleaner.supervisor.actor_test_kit", Stage="ActorTestKit")

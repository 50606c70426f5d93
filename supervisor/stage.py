"""`gleaner.supervisor.actor_test_kit` under its former name."""

from gleaner.supervisor.actor_test_kit import ActorTestKit as Stage

__all__ = ["Stage"]

"""User-defined actors of a job: named by `module:Class`, each in its own process.

The processes run on the head.
"""

from importlib import import_module

from gleaner.configs.load import ConfigError
from gleaner.supervisor import Actor


def own_actor(place: str) -> type[Actor]:
    """The class at `module:Class`. Raises ConfigError if there is none."""
    module, _, name = place.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as problem:
        raise ConfigError(
            [f"job.actors {place}: {problem}; it is imported where the head runs: install it there, or start "
             "the head in its folder"]
        ) from problem  # fmt: skip
    if not (isinstance(found, type) and issubclass(found, Actor)):
        raise ConfigError([f"job.actors {place}: expected a class below supervisor.Actor, got {found!r}"])
    return found


def own_name(place: str) -> str:
    """The name under which others find it."""
    return f"own/{place.partition(':')[2]}"

"""KeptModel: the model whose requests are in a gateway's state directory.

Requests in its journal are continued only by engines of that model."""

from dataclasses import replace
from pathlib import Path

import msgspec

from gleaner.actors.engine.servers.foreign_facts import EngineFacts
from gleaner.nodeagent.exit_codes import FAILED, CannotRun
from gleaner.nodeagent.files import write_whole

NAME = "model.json"


class KeptModel:
    """In a file of the state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / NAME

    def read(self) -> EngineFacts | None:
        """None where the gateway never had an engine. Raises CannotRun."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=EngineFacts)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as problem:
            why = f"{self._path} cannot be read: {problem}: remove it, or start with another --state-dir"
            raise CannotRun(FAILED, why) from problem

    def write(self, facts: EngineFacts) -> None:
        """Write the facts of the very first engine. The folder is left out: a server may report the one of
        the weights that it loaded last."""
        if not self._path.exists():
            write_whole(self._path, msgspec.json.encode(replace(facts, root="")))

"""User functions inside the sandbox: imported once, called in forks.

The payload is trusted but for the response in it, which is data to the function. Its reply goes to the
trusted end, which reads it strictly.
"""

import json
import os
import sys
from collections.abc import Mapping

from gleaner.actors.reward.verifiers.call_forms import BadFunction
from gleaner.actors.reward.verifiers.own_function import OwnFunction, failure

PREPARE = f"{__name__}:prepare"
DESCRIBE = f"{__name__}:describe"
FUNCTION = f"{__name__}:score"
MAX_REFUSED = 20

_loaded: list[OwnFunction] = []
_problems: list[str] = []


def prepare(settings: dict[str, str]) -> None:
    """Import the function, once for all programs. `describe` reports errors of it."""
    try:
        _loaded[:] = [OwnFunction(settings["call"], settings["folder"], settings["style"])]
    except BadFunction as problem:
        _problems[:] = [str(problem)]


def describe(_: bytes) -> bytes:
    """The errors of the function, empty for none."""
    return "; ".join(_problems).encode("utf-8", "replace")


def score(payload: bytes) -> bytes:
    """JSON of the function's result for one response: score and parts, or why it failed."""
    item = json.loads(payload)
    watch = Watch() if item.pop("watched", False) else None
    result = _scored(item)
    if watch is not None:
        result["refused"] = watch.refused()
    return json.dumps(result, ensure_ascii=False).encode("utf-8", "replace")


def _scored(item: Mapping[str, object]) -> dict[str, object]:
    if not _loaded:
        return {"failed": "; ".join(_problems)}
    function = _loaded[0]
    try:
        found = function.call(item)
    except MemoryError:  # a limit of the sandbox, which it reports
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001  # the user's function
        return {"failed": failure(function, error, inside=True)}
    return {"score": found.score, "parts": dict(found.parts)}


class Watch:
    """Files and addresses that a function tries to reach, for its author. For one call: hooks of the
    interpreter stay until the process ends."""

    def __init__(self) -> None:
        self._files: dict[str, None] = {}
        self._addresses: dict[str, None] = {}
        sys.addaudithook(self._seen)

    def _seen(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and len(self._files) < 1000:
            self._files[os.path.abspath(arguments[0])] = None
        elif event in ("socket.connect", "socket.getaddrinfo", "subprocess.Popen"):
            shown = arguments[1:] if event == "socket.connect" else arguments[:2]
            if len(self._addresses) < MAX_REFUSED:
                self._addresses[f"{event} {' '.join(map(str, shown))}"[:200]] = None

    def refused(self) -> list[str]:
        """Those that the sandbox does not have, or does not give."""
        network = [one for one in self._addresses if not one.startswith("subprocess")]
        files = []
        for path in list(self._files):
            try:
                os.close(os.open(path, os.O_RDONLY))
            except PermissionError:
                files.append(f"not readable: {path}")
            except FileNotFoundError:
                files.append(f"not there: {path}")
            except OSError:
                continue
        return [*network, *files][:MAX_REFUSED]

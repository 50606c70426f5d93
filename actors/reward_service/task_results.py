"""TaskResults: tasks that were submitted, until their results are forgotten.

At most `MOST_TASKS`. A result is kept for `KEPT_S`, also after it was read, since a client may repeat its
request. At the limit the oldest result is forgotten; if all tasks are still under way, none is taken.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from gleaner.actors.reward_service.asking import QueueFull, Scored, UnknownResult

MOST_TASKS = 16_384
KEPT_S = 600.0


@dataclass(slots=True)
class SubmittedTask:
    """A task. began_s, ended_s: on the clock of the caller. wall_s: date of its beginning."""

    task: str
    done: "asyncio.Future[Scored]"
    began_s: float
    wall_s: float
    ended_s: float = 0.0


class TaskResults:
    """See the module. Times are arguments."""

    def __init__(self, most: int = MOST_TASKS) -> None:
        self._most = most
        self._tasks: OrderedDict[str, SubmittedTask] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tasks)

    def room(self, now_s: float) -> None:
        """Forget what is old, so that a task may be added. Raises QueueFull."""
        for name, one in list(self._tasks.items()):
            if not (one.done.done() and now_s - one.ended_s > KEPT_S):
                break
            del self._tasks[name]
        if len(self._tasks) < self._most:
            return
        over = next((name for name, one in self._tasks.items() if one.done.done()), None)
        if over is None:
            raise QueueFull(f"{len(self._tasks)} tasks are under way, at most {self._most} may be")
        del self._tasks[over]

    def add(self, name: str, task: SubmittedTask) -> None:
        """A task; call `room` before."""
        self._tasks[name] = task

    def get(self, name: str) -> SubmittedTask:
        """The task of this id. Raises UnknownResult."""
        found = self._tasks.get(name)
        if found is None:
            raise UnknownResult(f"no task {name!r:.80} is known here; submit it again")
        return found

    def close(self) -> None:
        """Cancel what is under way."""
        for one in self._tasks.values():
            one.done.cancel()

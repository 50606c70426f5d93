"""`TrustedFunction`: verifier `python` with `trusted = true`, without a sandbox.

The function runs in the process of the reward worker. It has the rights, the environment and the network of
the job's user. For functions that call a service and never evaluate the contents of a response. A hanging
function is ended with its worker.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from gleaner.actors.reward import verdicts
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.verdicts import Judgement
from gleaner.actors.reward.verifiers.call_forms import BadFunction, FunctionResult
from gleaner.actors.reward.verifiers.functions import MAX_DETAIL, item_for, place_of
from gleaner.actors.reward.verifiers.own_function import OwnFunction, failure
from gleaner.actors.reward.verifiers.port import BadVerifier
from gleaner.actors.reward.verifiers.timed_scoring import GOES_ON, NOT_REACHED
from gleaner.configs.schema import Function

AT_ONCE = 32
"""Responses that an async function scores at a time."""


class TrustedFunction:
    """A `Verifier`; the parameters are the settings `[reward.function]`."""

    def __init__(self, settings: Function, clock: Callable[[], float] = time.monotonic) -> None:
        self._place, self._style = place_of(settings), settings.style
        self._deadline_s, self._clock = settings.deadline_s, clock
        self._function: OwnFunction | None = None
        self._runner: asyncio.Runner | None = None

    def open(self) -> None:
        """Import the function. Raises `BadVerifier`."""
        try:
            self._function = OwnFunction(self._place.call, self._place.folder, self._style)
        except BadFunction as problem:
            raise BadVerifier(f"reward.function: {problem}") from problem
        self._runner = asyncio.Runner()

    def close(self) -> None:
        """Close its event loop."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None
        self._function = None

    def check(self, entry: Entry) -> str:
        """See `Verifier`: any problem will do."""
        return ""

    def score_all(self, items: Sequence[tuple[Entry, str]]) -> list[Judgement]:
        """See `Verifier`: async functions score `AT_ONCE` at a time, each within the deadline in wall time;
        others one after the other, and the worker's own deadline ends them. Those that are not begun in time
        are `NOT_REACHED`."""
        if self._function is None:
            self.open()
        assert self._runner is not None
        return self._runner.run(self._all(items))

    async def _all(self, items: Sequence[tuple[Entry, str]]) -> list[Judgement]:
        free = asyncio.Semaphore(AT_ONCE)
        until_s = self._clock() + GOES_ON * self._deadline_s

        async def one(number: int, entry: Entry, response: str) -> Judgement:
            async with free:
                if number and self._clock() >= until_s:
                    return NOT_REACHED
                return await self._judged(entry, response)

        return await asyncio.gather(*(one(number, *item) for number, item in enumerate(items)))

    async def _judged(self, entry: Entry, response: str) -> Judgement:
        function = self._function
        assert function is not None
        clock = asyncio.timeout(self._deadline_s)
        try:
            async with clock:
                found: FunctionResult = await function.call_async(item_for(entry, response))
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever the user's function raises
            if clock.expired():
                text = f"{function.name}: no result within {self._deadline_s:g} s on the clock"
            else:
                text = failure(function, error, inside=False)
            return Judgement(0.0, verdicts.VERIFIER_FAILED, text[:MAX_DETAIL])
        return Judgement(found.score, parts=found.parts)

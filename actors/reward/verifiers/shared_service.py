"""`SharedVerifier`: a task's responses are scored by a reward service that several jobs share.

The service's status is the response's; where it has no score, the status is one of ours.
"""

import asyncio
import random

import msgspec

from gleaner.actors.protocol.reward import JOB_HEADER
from gleaner.actors.reward import verdicts
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.verdicts import Judgement
from gleaner.actors.reward.verifiers import http_calls
from gleaner.actors.reward.verifiers.functions import MAX_DETAIL
from gleaner.actors.reward.verifiers.http_wires import BadAnswer, shown
from gleaner.actors.reward.verifiers.port import BadVerifier
from gleaner.actors.reward.verifiers.service_verifier import ServiceVerifier
from gleaner.configs.schema import Share

MOST = 32
"""Responses that a worker gets together (`scoring_queue.TOGETHER`): all are at the service at a time."""
ROUTE = "/score"


class _Verdict(msgspec.Struct, frozen=True):
    """The service's answer."""

    score: float
    status: str
    detail: str = ""


class SharedVerifier(ServiceVerifier):
    """A `Verifier`.

    Args:
        task: its name, here and in the service's settings.
        share: the service, whose URL is known.
        job: the name of this job there.
        rng: of the waits between tries.
    """

    def __init__(self, task: str, share: Share, job: str, rng: random.Random | None = None) -> None:
        super().__init__(MOST, rng)
        self._url, self._task, self._job, self._share = share.with_.rstrip("/"), task, job, share

    def headers(self) -> dict[str, str]:
        """See `ServiceVerifier`."""
        if not self._url.startswith("http"):
            raise BadVerifier(
                f"task {self._task}: reward.share.with: expected a URL, got {self._share.with_!r}"
            )
        key = http_calls.secret(self._share.key_env, "reward.share.key_env")
        return {JOB_HEADER: self._job, **({"Authorization": f"Bearer {key}"} if key else {})}

    async def judged(self, entry: Entry, response: str) -> Judgement:
        """See `ServiceVerifier`."""
        body = {"task": self._task, "problem": msgspec.to_builtins(entry), "response": response}
        failures: list[str] = []
        try:
            async with asyncio.timeout(self._share.deadline_s):
                return await self.tried(lambda: self._asked(body), failures)
        except TimeoutError:
            why = f": {failures[-1]}" if failures else ""
            text = f"{self._url}: no verdict within {self._share.deadline_s:g} s{why}"
            return Judgement(0.0, verdicts.UNAVAILABLE, text[:MAX_DETAIL])
        except BadAnswer as problem:
            return Judgement(0.0, verdicts.VERIFIER_FAILED, f"{self._url}: {problem}"[:MAX_DETAIL])

    async def _asked(self, body: object) -> Judgement:
        """Raises Unavailable, BadAnswer."""
        assert self.session is not None
        text = await http_calls.sent(self.session, "POST", f"{self._url}{ROUTE}", body)
        try:
            found = msgspec.json.decode(text, type=_Verdict)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise BadAnswer(f"it sent no verdict: {shown(text)}") from None
        if found.status not in verdicts.PROGRAMS:
            raise BadAnswer(f"it sent the status {found.status!r:.40}")
        return Judgement(found.score, found.status, found.detail)

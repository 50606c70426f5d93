"""`AnswerVerifier`: verifier `reasoning-gym`, whose package scores in a sandbox.

This is the trusted end.
"""

from collections.abc import Sequence
from dataclasses import replace

from gleaner.actors.reward import verdicts
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.problems import answer_of
from gleaner.actors.reward.sandbox.detection import detect
from gleaner.actors.reward.sandbox.host_end import HostSandbox
from gleaner.actors.reward.sandbox.port import Limits, Outcome, Sandbox, Status, Work
from gleaner.actors.reward.verdicts import Judgement
from gleaner.actors.reward.verifiers import reasoning
from gleaner.actors.reward.verifiers.port import Trial, VerifierSpec


def limits(deadline_s: float) -> Limits:
    """Limits of answers that are scored together, within so much processor time. Rules take microseconds, but
    sympy may not end on a hostile formula."""
    return Limits(cpu_s=deadline_s, wall_s=2 * deadline_s, memory_bytes=2**30)


STAYING = Limits(cpu_s=3600.0, wall_s=7 * 86_400.0, memory_bytes=2**30)
"""Limits of the process that answers share, over all of its answers."""


class AnswerVerifier:
    """A `Verifier`. The parameters are those of the dataset; `Entry.info` is the package's own entry."""

    def __init__(self, spec: VerifierSpec) -> None:
        self._task: dict[str, object] = {"name": spec.task, "params": dict(spec.params)}
        self._isolation, self._limits = spec.isolation, limits(spec.deadline_s)
        self._sandbox: Sandbox | None = None

    def open(self) -> None:
        """Start the sandbox. Raises `NoSandbox`, `SandboxFailed`."""
        sandbox = HostSandbox(detect(self._isolation), [(reasoning.PREPARE, self._task)])
        sandbox.start()
        self._sandbox = sandbox

    def close(self) -> None:
        """End the sandbox, if there is one."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def check(self, entry: Entry) -> str:
        """See `Verifier`."""
        return "" if entry.info else "it has no entry of reasoning-gym"

    def score_all(self, items: Sequence[tuple[Entry, str]]) -> list[Judgement]:
        """See `Verifier`: the text between the last `<answer>` tags of a response, else the text after the
        thinking, gets the package's score, from 0 to 1.

        An answer that makes the package's verifier raise gets 0, because models write anything. Answers are
        data to the verifier and share a process of the sandbox; if that does not end well, each has its own.
        Raises `NoSandbox`, `SandboxFailed` at the first call.
        """
        answers = [(answer_of(response), entry.info) for entry, response in items]
        whole = self._run(answers, together=True)
        if isinstance(whole, list):
            return whole
        alone = [self._run([one], together=False) for one in answers]
        return [one[0] if isinstance(one, list) else verdicts.of_failure(one) for one in alone]

    def try_one(self, entry: Entry, response: str) -> Trial:
        """See `Tries`."""
        found = self._run([(answer_of(response), entry.info)], together=False)
        judged = found[0] if isinstance(found, list) else verdicts.of_failure(found)
        return Trial(judgement=judged, read=answer_of(response))

    def _run(
        self, answers: Sequence[tuple[str, dict[str, object]]], *, together: bool
    ) -> list[Judgement] | Outcome:
        if self._sandbox is None:
            self.open()
        assert self._sandbox is not None
        work = Work(function=reasoning.FUNCTION, payload=reasoning.request(answers), limits=self._limits)
        if together:
            outcome = self._sandbox.ask(replace(work, limits=STAYING, each_s=self._limits.cpu_s))
        else:
            outcome = self._sandbox.run(work)
        if outcome.status is not Status.OK:
            return outcome
        found = reasoning.judgements(outcome.result, len(answers))
        wrong = "the verifier's result is not of the answers that it was given"
        return replace(outcome, status=Status.SANDBOX_FAILED, detail=wrong) if found is None else found

"""Progress of a run, from its history records.

Pure: records go in through `Progress.observe`, numbers and lines of text come out. Has no terminal and no
clock (`gleaner.rlctl.live_view` does); its time is the time of the records.
"""

from collections import deque

import msgspec

from gleaner.actors.training.account import Meter
from gleaner.actors.training.history import (
    AnyRecord,
    End,
    Eval,
    FirstInstance,
    Node,
    Phase,
    Restart,
    Run,
    Sample,
    Step,
    Verifier,
)
from gleaner.configs.schema import Prices
from gleaner.rlctl.cost_account import Account, account
from gleaner.rlctl.quantity_format import duration
from gleaner.rlctl.report.model import PREEMPTIBLE
from gleaner.rlctl.report.verdict import findings, unchecked_only

RECENT_STEPS = 5
"""Steps whose mean time, without recovery, gives the time left; fewer would follow every outlier."""
RECENT_EVENTS = 6
EVENT_WORDS = {"joined": "joined", "left": "left", "killed": "was killed", "noticed": "got its notice",
               "drained": "handed its work over", "spared": "stays after all",
               "unfit": "cannot run its part of the job"}  # fmt: skip
PHASE_WORDS = {
    "model": "preparing the model",
    "head": "starting the head and its hosts",
    "trainer": "starting the trainer",
    "evaluation": "evaluating on the held-out problems",
    "instance": "waiting for the first preemptible instance",
    "steps": "training",
    "checkpoint": "writing the last checkpoint",
    "audit": "auditing the journals",
}


class Progress:
    """Present state. Bounded, however long the run."""

    def __init__(self) -> None:
        self.run_id = ""
        self.steps_planned = 0
        self.steps_done = 0
        self.t_s = 0.0
        self.step_ended_s = 0.0
        self.rewards: deque[float] = deque(maxlen=200)
        self.heldout_first: float | None = None
        self.heldout_last: float | None = None
        self.last_sample: Sample | None = None
        self.last_step: Step | None = None
        self.killed = 0
        self.noticed = 0
        self.restarts = 0
        self.events: deque[tuple[float, str]] = deque(maxlen=RECENT_EVENTS)
        self.end: End | None = None
        self.phase = ""
        self.unserved = ""
        self.sick = ""
        self.prices = Prices()
        self._meter = Meter()
        self._step_times: deque[float] = deque(maxlen=RECENT_STEPS)

    def observe(self, record: AnyRecord) -> None:
        """Take one record, in the order of the history."""
        self.t_s = max(self.t_s, record.t_s)
        self._meter.observe(record)
        match record:
            case Run():
                again = bool(self.run_id)
                self.run_id, self.steps_planned, self.end = record.run_id, record.steps, None
                self.step_ended_s = record.t_s
                self.sick = ""
                self.prices = _prices(record)
                if again:
                    self.events.append((record.t_s, "the run goes on"))
            case Sample():
                self.last_sample = record
            case Step():
                self.last_step = record
                self.steps_done = max(self.steps_done, record.step)
                self.step_ended_s = record.t_s
                if record.reward is not None:
                    self.rewards.append(record.reward)
                self._step_times.append(record.step_s - record.recovery_s)
            case Eval(when="first"):
                self.heldout_first = record.reward
                self.step_ended_s = record.t_s
            case Eval():
                self.heldout_last = record.reward
                self.step_ended_s = record.t_s
            case Node():
                self.killed += record.event == "killed" and record.role == PREEMPTIBLE
                self.noticed += (record.event == "noticed") - (record.event == "spared")
                self.events.append((record.t_s, event_line(record)))
            case FirstInstance():
                self.unserved = "" if record.served else event_line(record)
                self.events.append((record.t_s, event_line(record)))
            case Verifier():
                self.sick = event_line(record) if record.sick else ""
                self.events.append((record.t_s, event_line(record)))
            case Phase():
                self.phase = PHASE_WORDS[record.phase]
            case Restart():
                self.restarts += 1
                self.events.append((record.t_s, event_line(record)))
            case End():
                self.end = record

    def account(self, now_s: float | None = None) -> Account:
        """Cost until the newest record, or until now (s of run time)."""
        self._meter.advance(self.t_s if now_s is None else now_s)
        return account(self._meter.used, self.prices)

    def left_s(self, now_s: float | None = None) -> float | None:
        """Estimated seconds until the last step ends; None before the first step did. now_s: run time, s."""
        if not self._step_times or not self.steps_planned:
            return None
        mean_s = sum(self._step_times) / len(self._step_times)
        spent_s = max(0.0, (self.t_s if now_s is None else now_s) - self.step_ended_s)
        return max(0.0, (self.steps_planned - self.steps_done) * mean_s - min(spent_s, mean_s))


def _prices(record: Run) -> Prices:
    """The run's settings as stored; an older program's may have other fields."""
    try:
        return msgspec.convert(record.config.get("prices", {}), Prices)
    except msgspec.ValidationError:
        return Prices()


def cost_line(account: Account) -> str:
    """An account on one line."""
    parts = [f"{account.cost:,.4f} {account.currency}"]
    if account.per_million_tokens is not None:
        parts.append(f"{account.per_million_tokens:,.2f} a million trained tokens")
    if account.wasted:
        causes = ", ".join(f"{count:,} {cause.replace('_', ' ')}" for cause, count in account.wasted.items())
        parts.append(f"wasted: {causes}")
    return "   ".join(parts)


def event_line(record: Node | Restart | FirstInstance | Verifier) -> str:
    """A record as text."""
    if isinstance(record, Node):
        cause = f" ({' '.join(record.cause.split())})" if record.cause else ""
        return f"{record.node} {EVENT_WORDS[record.event]}{cause}"
    if isinstance(record, FirstInstance):
        if record.served:
            return f"the first preemptible instance serves, after {record.waited_s:.1f} s"
        return f"WARNING: no preemptible instance has served for {record.waited_s:.0f} s: {record.why}"
    if isinstance(record, Verifier):
        if not record.sick:
            return "the verifier is well again, groups are handed out"
        return f"WARNING: no groups are handed out, the verifier is sick: {record.why}"
    return f"{record.actor} restarted ({' '.join(record.cause.split())})"


def plain_line(progress: Progress, record: AnyRecord) -> str | None:
    """The line for a record that was just observed, or None for a record without one (samples)."""
    match record:
        case Run():
            text = f"run {record.run_id}: {record.steps} steps, seed {record.seed}"
        case Step():
            left_s = progress.left_s()
            sample = progress.last_sample
            parts = [
                f"step {record.step}/{progress.steps_planned}",
                "no reward" if record.reward is None else f"reward {record.reward:.3f}",
                f"{record.unscored} unscored" if record.unscored else "",
                f"{record.tokens} tokens",
                f"{record.step_s:.1f} s",
                f"{sample.reserved + sample.preemptible} hosts" if sample else "",
                f"{sample.migrations} migrated" if sample else "",
                f"about {duration(left_s)} left" if left_s else "",
            ]
            text = "  ".join(part for part in parts if part)
        case Eval():
            when = f"after step {record.step}" if record.when == "during" else record.when
            reward = "unknown" if record.reward is None else f"{record.reward:.3f}"
            text = f"held-out reward {reward} ({when}, {record.problems} problems){_by_task(record.tasks)}"
        case Node() | Restart() | FirstInstance() | Verifier():
            text = event_line(record)
        case Phase():
            text = PHASE_WORDS[record.phase]
        case End():
            text = end_line(progress)
        case _:
            return None
    return f"[{record.t_s:7.1f} s] {text}"


def end_style(end: End) -> str:
    """Style of the line that reports the end."""
    broken = not end.ok and not unchecked_only(len(end.violations), end.unchecked)
    return "" if end.ok else "bold red" if broken else "bold yellow"


def end_line(progress: Progress) -> str:
    """How the run ended, in one sentence; "" while it runs."""
    end = progress.end
    if end is None:
        return ""
    outcome = "every invariant held"
    if not end.ok:
        found = findings(len(end.violations), end.unchecked)
        outcome = f"{found}: {'; '.join(end.violations) or 'see report.html'}"
    return (
        f"ended: {end.tokens_collected} tokens collected, {end.tokens_lost} lost, "
        f"{end.tokens_generated_twice} generated twice, {end.requests_migrated} requests migrated; {outcome}"
    )


def _by_task(tasks: dict[str, float | None]) -> str:
    """The rewards of a job with several tasks."""
    known = [f"{name} {'unknown' if reward is None else f'{reward:.3f}'}" for name, reward in tasks.items()]
    return f": {', '.join(known)}" if known else ""

"""Round table: the rounds of a run, and the figures of their periods.

Pure: records of the history go in.
"""

from collections.abc import Sequence
from itertools import chain

import msgspec

from gleaner.actors.training.length_law import mean_length, total
from gleaner.actors.training.records import AnyRecord, Round, Step


class RoundRow(msgspec.Struct, frozen=True, kw_only=True):
    """The round of a step. launched, deferred: groups; queued: draws in the queue behind it; edge: tokens of
    the longest response that counts, longest: of any; aborted_tokens: made and thrown away, of
    responses that had ended too."""

    step: int
    round: str
    launched: int
    counted: int
    over: int
    deferred: int
    queued: int
    edge: int
    longest: int
    step_s: float
    aborted_tokens: int
    reward: float | None


class PeriodRow(msgspec.Struct, frozen=True, kw_only=True):
    """A period: the short rounds up to a long one, and the long one; or a single whole step. step_s, reward,
    trained_length: means over its steps, and over the responses that they trained on. launched_length: mean
    of the responses that its short rounds launched, by Kaplan and Meier where they were aborted. bias:
    trained over launched. oldest_age: steps since the first launch of the oldest draw that waited."""

    first: int
    last: int
    short: int
    long: int
    step_s: float
    reward: float | None
    trained_length: float | None
    launched_length: float | None
    bias: float | None
    oldest_age: int
    aborted_tokens: int
    whole: bool


class RoundTable(msgspec.Struct, frozen=True, kw_only=True):
    """The rounds of a run, by step and by period. bias: over all whole periods, None without one."""

    run: str
    rounds: list[RoundRow]
    periods: list[PeriodRow]
    bias: float | None


def round_table(run: str, records: Sequence[AnyRecord], *, all_trained: bool = False) -> RoundTable:
    """The rounds of a run, from its history: the newest record of each step. Empty for a job without
    rounds. all_trained: a whole period trains every response that it launched (own seeds, no surplus
    samples), so nothing is estimated: its bias is 1."""
    steps = {one.step: one for one in records if isinstance(one, Step)}
    newest = {one.step: one for one in records if isinstance(one, Round)}
    rounds = [newest[step] for step in sorted(newest.keys() & steps.keys())]
    periods = _periods(rounds)
    whole = [one for period in periods if _whole(period) for one in period]
    return RoundTable(
        run=run,
        rounds=[_row(one, steps[one.step]) for one in rounds],
        periods=[_period(period, steps, all_trained=all_trained) for period in periods],
        bias=_bias(whole, all_trained=all_trained),
    )


def _periods(rounds: Sequence[Round]) -> list[list[Round]]:
    periods: list[list[Round]] = []
    for one in rounds:
        if not periods or periods[-1][-1].round != "short":
            periods.append([])
        periods[-1].append(one)
    return periods


def _whole(rounds: Sequence[Round]) -> bool:
    """Whether these rounds are a period from its first short one to its long one."""
    return rounds[0].round == "short" and rounds[-1].round == "long"


def _row(one: Round, step: Step) -> RoundRow:
    return RoundRow(
        step=one.step,
        round=one.round,
        launched=one.launched,
        counted=one.counted,
        over=one.over,
        deferred=one.deferred,
        queued=one.queued,
        edge=one.edge,
        longest=one.longest,
        step_s=step.step_s,
        aborted_tokens=one.aborted_tokens,
        reward=step.reward,
    )


def _period(rounds: Sequence[Round], steps: dict[int, Step], *, all_trained: bool) -> PeriodRow:
    own = [steps[one.step] for one in rounds]
    rewards = [step.reward for step in own if step.reward is not None]
    return PeriodRow(
        first=rounds[0].step,
        last=rounds[-1].step,
        short=sum(one.round == "short" for one in rounds),
        long=sum(one.round == "long" for one in rounds),
        step_s=sum(step.step_s for step in own) / len(own),
        reward=sum(rewards) / len(rewards) if rewards else None,
        trained_length=_trained(rounds),
        launched_length=_launched(rounds, all_trained=all_trained),
        bias=_bias(rounds, all_trained=all_trained),
        oldest_age=max(one.oldest_age for one in rounds),
        aborted_tokens=sum(one.aborted_tokens for one in rounds),
        whole=_whole(rounds),
    )


def _bias(rounds: Sequence[Round], *, all_trained: bool) -> float | None:
    trained, launched = _trained(rounds), _launched(rounds, all_trained=all_trained)
    return trained / launched if trained is not None and launched else None


def _trained(rounds: Sequence[Round]) -> float | None:
    tokens = sum(one.trained_tokens for one in rounds)
    responses = sum(one.trained_responses for one in rounds)
    return tokens / responses if responses else None


def _launched(rounds: Sequence[Round], *, all_trained: bool) -> float | None:
    """Every draw counts once: in its first launch, in a short round. Without one, all rounds count. Where all
    of them are trained their lengths are known as soon as the period is whole."""
    if all_trained:
        return _trained(rounds) if rounds and _whole(rounds) else None
    short = [one for one in rounds if one.round == "short"] or list(rounds)
    ended = list(chain.from_iterable(one.ended for one in short))
    aborted = list(chain.from_iterable(one.aborted for one in short))
    return mean_length(ended, aborted) if total(ended)[1] else None

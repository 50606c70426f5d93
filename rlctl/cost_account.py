"""Cost account of a run: device hours and money, waste by cause, price per step.

Device hours and money are listed by price class, and the price also per million trained tokens. Owns the
presentation of the figures, not the sums (`gleaner.actors.training.account`). Pure. The report, the live view
and what-ifs give the same account for the same records.
"""

from collections.abc import Sequence

import msgspec

from gleaner.actors.training.account import spans_of, used_between, whole_steps
from gleaner.actors.training.records import AnyRecord, Step
from gleaner.actors.training.usage import HOUR_S, ResourceUsage
from gleaner.configs.schema import Prices

MILLION = 1e6


class PriceClass(msgspec.Struct, frozen=True, kw_only=True):
    """Hosts of one price.

    gpu_hours: of devices; a host without devices counts as one. per_gpu_hour: price of one device hour; None
    where there is none. parts_hours: `gpu_hours` by use: "seeding", "waiting", "training", "weights",
    "recovery", "evaluation" (between steps) and "other" for reserved hosts, "busy" and "idle" for preemptible
    hosts; empty where the use was not measured.
    """

    host_hours: float
    gpu_hours: float
    cost: float
    per_gpu_hour: float | None
    parts_hours: dict[str, float]


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """One step, from its start to its end. per_million: price of a million trained tokens; None for a step
    without trained tokens."""

    step: int
    reserved: float
    preemptible: float
    tokens: int
    per_million: float | None


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """The account of a whole run, or of the requested time range. Money is in `currency`.

    trained: response tokens on which steps were trained. wasted: tokens on which no step was trained, by
    cause; includes generated_twice. per_step, per_million_tokens: the total cost divided by the steps and by
    the trained tokens; None where there are none.
    """

    currency: str
    reserved: PriceClass
    preemptible: PriceClass
    cost: float
    steps: int
    per_step: float | None
    trained: int
    per_million_tokens: float | None
    collected: int
    wasted: dict[str, int]
    wasted_share: float | None
    each_step: list[StepCost] = []


def account_of(
    records: Sequence[AnyRecord], prices: Prices, begin_s: float = 0.0, end_s: float | None = None
) -> Account:
    """The account of these records, with each step.

    begin_s, end_s: seconds of the run; None is the last record's time. Steps that end within the range are
    counted.
    """
    last_s = max((record.t_s for record in records), default=0.0) if end_s is None else end_s
    steps = [step for step in whole_steps(records) if begin_s <= step.t_s <= last_s]
    whole, *each = used_between(records, [(begin_s, last_s), *spans_of(steps)])
    costs = [_step_cost(step, used, prices) for step, used in zip(steps, each, strict=True)]
    return account(whole, prices, costs)


def account(used: ResourceUsage, prices: Prices, each_step: Sequence[StepCost] = ()) -> Account:
    """The account of one usage record."""
    cost = sum(used.cost(prices))
    wasted = {cause: count for cause, count in sorted(used.wasted.items()) if count}
    if used.twice:
        wasted["generated_twice"] = used.twice
    made = used.collected + used.twice
    return Account(
        currency=prices.currency,
        reserved=_class(used.reserved_s, used.reserved_devices_s, prices.reserved_per_hour, _spent(used)),
        preemptible=_class(
            used.preemptible_s, used.preemptible_devices_s, prices.preemptible_per_hour, _busy(used)
        ),
        cost=round(cost, 9),
        steps=used.steps,
        per_step=round(cost / used.steps, 9) if used.steps else None,
        trained=used.trained,
        per_million_tokens=round(cost / used.trained * MILLION, 9) if used.trained else None,
        collected=used.collected,
        wasted=wasted,
        wasted_share=round(sum(wasted.values()) / made, 9) if made else None,
        each_step=list(each_step),
    )


def _step_cost(step: Step, used: ResourceUsage, prices: Prices) -> StepCost:
    reserved, preemptible = used.cost(prices)
    cost = reserved + preemptible
    return StepCost(
        step=step.step,
        reserved=round(reserved, 9),
        preemptible=round(preemptible, 9),
        tokens=step.tokens,
        per_million=round(cost / step.tokens * MILLION, 9) if step.tokens else None,
    )


def _class(hosts_s: float, devices_s: float, per_hour: float, parts_s: dict[str, float]) -> PriceClass:
    return PriceClass(
        host_hours=round(hosts_s / HOUR_S, 9),
        gpu_hours=round(devices_s / HOUR_S, 9),
        cost=round(hosts_s / HOUR_S * per_hour, 9),
        per_gpu_hour=round(per_hour * hosts_s / devices_s, 9) if devices_s else None,
        parts_hours={name: round(seconds / HOUR_S, 9) for name, seconds in parts_s.items()},
    )


def _spent(used: ResourceUsage) -> dict[str, float]:
    if not used.parts_s:
        return {}
    return {**used.parts_s, "other": max(0.0, used.reserved_devices_s - sum(used.parts_s.values()))}


def _busy(used: ResourceUsage) -> dict[str, float]:
    """Scale measured hours to the whole: hours without a look at the fleet are assumed to be like the
    others."""
    if not used.looked_s:
        return {}
    busy_s = used.preemptible_devices_s * min(1.0, used.busy_s / used.looked_s)
    return {"busy": busy_s, "idle": used.preemptible_devices_s - busy_s}

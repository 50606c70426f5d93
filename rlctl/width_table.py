"""Width table: predicted step of each tensor-parallel width of each kind of host, before a job.

Owns the candidates, the sampled lengths and the choice of the best width. The prediction is that of the
planner (`gleaner.actors.cluster.step_model`), with the times and caches that the models of engines have at
each width. Pure.

Each kind of host varies alone; the other one has the width of its rig. Left out: retractions (a request that
outgrows the cache pauses, and pays no second prefill), rewards and evaluations.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from gleaner.actors.cluster.step_model import Machines, Work, predict
from gleaner.actors.protocol.throughput import EnginePace
from gleaner.configs.trace import Event
from gleaner.sim.models.engine_cost import DoesNotFit, engine_cost, kv_capacity_tokens
from gleaner.sim.models.host_devices import HostDevices
from gleaner.sim.models.movement import load_s, pull_s
from gleaner.sim.models.tokens import mix
from gleaner.sim.run_setup import RunSetup

MOST_WIDTH = 8
"""Devices of one server: a tensor-parallel group does not leave it (RollPacker 4.2)."""
MOST_GROUPS = 64  # sampled of those that a step launches
WINDOWS = 9  # seeding windows that are tried


class WidthRow(msgspec.Struct, frozen=True, kw_only=True):
    """One width of one kind of host. Seconds of a step that is rolled out whole, or, in a job with rounds, of
    a short round, a long round, and the mean of a period; None where the model does not fit. copies: engines
    of a host. cache_tokens: of each. best: the shortest step of its kind of host."""

    host: str
    rig: str
    width: int
    copies: int
    cache_tokens: int | None = None
    short_s: float | None = None
    long_s: float | None = None
    step_s: float | None = None
    best: bool = False


def width_rows(setting: RunSetup) -> list[WidthRow]:
    """The rows of each kind of host that has several widths; none where times of engines were measured, which
    is at one width only."""
    if setting.job_model.measured.engine is not None:
        return []
    rounds = _rounds(setting)
    found: list[WidthRow] = []
    kinds = ["reserved", *(["preemptible"] if _instances(setting) else [])]
    for host in kinds:
        widths = _widths(_rig(setting, host).devices)
        if host == "preemptible" and setting.config.engine.widths:
            widths = [width for width in widths if width in setting.config.engine.widths]
        if len(widths) > 1:
            found += _with_best([_row(setting, rounds, host, width) for width in widths])
    return found


@dataclass(frozen=True, slots=True)
class _Rounds:
    """The lengths of the groups that count, by kind, and the groups that are launched beside them."""

    whole: list[list[int]]
    short: list[list[int]]
    long: list[list[int]]
    surplus: int
    shorts: float


def _rig(setting: RunSetup, host: str) -> HostDevices:
    return setting.reserved if host == "reserved" else setting.preemptible


def _widths(devices: int) -> list[int]:
    """Powers of two that cut a host's devices into equal groups."""
    powers = [1 << power for power in range(MOST_WIDTH.bit_length())]
    return [width for width in powers if width <= devices and devices % width == 0]


def _instances(setting: RunSetup) -> int:
    """Preemptible hosts: as many as the settings allow; of a trace, the most that it offers at a time."""
    most = setting.config.fleet.n_prem_max
    if setting.trace is None:
        return most
    up = peak = 0
    for event in setting.trace.events:
        up += {Event.ADD: 1, Event.REMOVE: -1, Event.NOTICE: 0}[event.event]
        peak = max(peak, up)
    return min(most, peak)


def _rounds(setting: RunSetup) -> _Rounds:
    """Groups from the law of lengths, in tokens of the model; of a job with rounds, which of them count."""
    config, job_model = setting.config, setting.job_model
    rollout, scale = config.rollout, job_model.token_scale
    launched, _ = config.rounds.launched(rollout.prompts, rollout.samples) if config.rounds.on else (0, 0)
    surplus = max(0, launched - rollout.prompts)
    count = min(MOST_GROUPS, rollout.prompts + surplus)
    limit = rollout.max_new_tokens * scale
    groups = [
        [
            job_model.law.length(mix(number * rollout.samples + sample), mix(number), limit)
            for sample in range(rollout.samples)
        ]
        for number in range(count)
    ]
    if not surplus:
        return _Rounds(groups, [], [], 0, 0.0)
    groups.sort(key=max)
    counted = max(1, round(count * rollout.prompts / (rollout.prompts + surplus)))
    shorts = rollout.prompts / surplus
    return _Rounds(groups, groups[:counted], groups[counted:] or groups[-1:], surplus, shorts)


def _row(setting: RunSetup, rounds: _Rounds, host: str, width: int) -> WidthRow:
    rig = replace(_rig(setting, host), tp=width)
    row = WidthRow(host=host, rig=_name(rig), width=width, copies=rig.replicas)
    shape = setting.job_model.shape
    try:
        cache_tokens = kv_capacity_tokens(shape, rig)
    except DoesNotFit:
        return row
    scale, config = setting.job_model.token_scale, setting.config
    longest = (config.engine.max_prompt_tokens + config.rollout.max_new_tokens) * scale
    if cache_tokens < longest:
        return row  # its longest request would be refused
    changed = replace(setting, reserved=rig) if host == "reserved" else replace(setting, preemptible=rig)
    row = msgspec.structs.replace(row, cache_tokens=cache_tokens)
    if not rounds.surplus:
        return msgspec.structs.replace(row, step_s=_step_s(changed, rounds.whole, 0))
    short_s = _step_s(changed, rounds.short, rounds.surplus)
    long_s = _step_s(changed, rounds.long, 0)
    step_s = (rounds.shorts * short_s + long_s) / (rounds.shorts + 1)
    return msgspec.structs.replace(row, short_s=short_s, long_s=long_s, step_s=step_s)


def _name(rig: HostDevices) -> str:
    return f"{rig.name}x{rig.devices}:tp{rig.tp}"


def _with_best(rows: list[WidthRow]) -> list[WidthRow]:
    """The rows with the best one marked; the narrower one of equals."""
    least = min((row.step_s for row in rows if row.step_s is not None), default=None)
    best = next((row.width for row in rows if row.step_s == least and least is not None), 0)
    return [msgspec.structs.replace(row, best=row.width == best) for row in rows]


def _step_s(setting: RunSetup, lengths: list[list[int]], surplus: int) -> float:
    """The predicted step with these groups, with the best of some windows."""
    work, instances = _work(setting, lengths, surplus), _instances(setting)
    machines = _machines(setting, instances)
    alone_s = float(predict(work, machines, np.zeros(1), np.zeros(1)).rolled_s[0])
    windows_s = np.linspace(0.0, alone_s, WINDOWS) if instances else np.zeros(1)
    counts = np.full(len(windows_s), float(instances))
    return float(predict(work, machines, windows_s, counts).end_s.min())


def _work(setting: RunSetup, lengths: list[list[int]], surplus: int) -> Work:
    rollout = setting.config.rollout
    prompt = prompt_tokens(setting)
    train = setting.job_model.trainer(setting.reserved)
    sizes = [length + prompt for group in lengths for length in group]
    micro_batches = -(-rollout.prompts // setting.config.training.micro_batch_groups)
    per_batch = len(sizes) * rollout.prompts / len(lengths) / micro_batches
    overhead_s = train.micro_batch_s * len(sizes) / per_batch
    token_s = (train.micro_batch(sizes) - train.micro_batch_s + overhead_s) / sum(sizes)
    return Work(
        lengths=lengths,
        groups=rollout.prompts,
        samples=rollout.samples,
        prompt_tokens=prompt,
        train_token_s=token_s,
        update_s=train.step_s + train.publish_s,
        surplus=surplus,
    )


def prompt_tokens(setting: RunSetup) -> float:
    """The mean length of a prompt, in tokens of the model."""
    least, most = setting.job_model.scorer.prompt_rows
    return (least + most) / 2 * setting.job_model.token_scale


def _machines(setting: RunSetup, instances: int) -> Machines:
    reserved, preemptible = setting.reserved, setting.preemptible
    rows = setting.config.rollout.prompts * setting.config.rollout.samples
    engines = reserved.replicas + instances * preemptible.replicas
    pace = engine_pace(setting, reserved, rows / engines)
    shape, network_bytes_s = setting.job_model.shape, min(setting.egress_bytes_s, setting.preemptible_bytes_s)
    start_s = pull_s(shape, preemptible, network_bytes_s) + load_s(shape, preemptible)
    return Machines(
        reserved=pace,
        preemptible=engine_pace(setting, preemptible, rows / engines) if instances else pace,
        engines=float(reserved.replicas),
        instance_engines=float(preemptible.replicas),
        start_s=start_s if instances else 0.0,
    )


def engine_pace(setting: RunSetup, rig: HostDevices, rows: float) -> EnginePace:
    """The pace of one copy on a rig, in tokens of the model. Beyond the rows at which products take longer
    than reading the weights, the line through both ends of the range up to `rows` is taken."""
    shape, slots = setting.job_model.shape, setting.config.engine.slots
    cost = engine_cost(shape, rig)
    decoded = max(1.0, min(rows, float(slots)))
    more_s = max(0.0, decoded * cost.row_products_s - cost.weights_s) / decoded
    return EnginePace(
        step_s=cost.weights_s + cost.step_s,
        row_s=cost.row_s + more_s,
        context_s=max(cost.context_read_s, cost.context_attention_s),
        prefill_token_s=cost.prefill_token_s,
        slots=slots,
        cache_tokens=kv_capacity_tokens(shape, rig),
    )


def lines_of(rows: Sequence[WidthRow]) -> list[str]:
    """The table as text; no line without a row."""
    if not rows:
        return []
    heads = ["host", "rig", "copies", "cache tokens each", *_columns(rows), ""]
    cells = [heads, *(_cells(row, rows) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["tensor-parallel width, predicted (the other kind of host as given):"]
    for line in cells:
        text = "  ".join(cell.ljust(room) for cell, room in zip(line, widths, strict=True))
        lines.append(f"  {text}".rstrip())
    return lines


def _columns(rows: Sequence[WidthRow]) -> list[str]:
    rounds = any(row.short_s is not None for row in rows)
    return ["a short round", "a long round", "a step of a period"] if rounds else ["a step"]


def _cells(row: WidthRow, rows: Sequence[WidthRow]) -> list[str]:
    if row.step_s is None:
        seconds = ["does not fit", *[""] * (len(_columns(rows)) - 1)]
    else:
        seconds = [f"{one:.1f} s" for one in (row.short_s, row.long_s, row.step_s) if one is not None]
    cache = "-" if row.cache_tokens is None else f"{row.cache_tokens:,}"
    return [row.host, row.rig, str(row.copies), cache, *seconds, "best" if row.best else ""]

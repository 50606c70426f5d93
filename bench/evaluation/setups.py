"""Set-ups of the paper as settings: machines, models, prices, artifact, variants.

Owns every number that is taken from the paper or assumed for it, each with its source. "Paper" is RLBoost
(NSDI 26); "artifact" its authors' public repository (Terra-Flux/PolyRL, branch `artifact`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from bench.evaluation import scenarios, segments
from bench.evaluation.cells import Cell
from bench.evaluation.rollpacker import setups as rollpacker
from gleaner.configs.load import load
from gleaner.configs.trace import Trace
from gleaner.rlctl.what_if_setup import WhatIfOptions, setting_of
from gleaner.sim.models.lengths import RLBOOST_8B, RLBOOST_14B, LengthLaw
from gleaner.sim.models.tails import TailedLaw
from gleaner.sim.models.training_cost import Passes
from gleaner.sim.run_setup import Paces, RunSetup

RESERVED_PER_HOUR, PREEMPTIBLE_PER_HOUR = 83.79, 5.32
"""Paper, table 2: an hour of eight H100 on demand, and of two on the spot market."""
PROMPT_TOKENS = 128
"""Assumed of every prompt; OpenR1-Math's are short compared with its responses."""
RESERVED_GBIT_S, PREEMPTIBLE_GBIT_S = 200.0, 50.0
"""Paper, table 2: the network card of a reserved host that faces the others, and that of a spot instance."""
MEMORY_FRACTION = 0.6
"""Artifact, of all engines: the share of a device that weights and cache fill; SGLang takes what it needs
beside them from the rest."""
BASE = "rlboost-14b"


@dataclass(frozen=True, slots=True)
class Model:
    """One of the paper's models. hosts: reserved ones, of eight H100 each. scale: tokens of the model per
    message token. local_memory: share of a reserved device that weights and cache fill. tails: the law of its
    lengths instead of `law`."""

    shape: str
    law: LengthLaw
    hosts: int = 1
    scale: int = 128
    local_memory: float = MEMORY_FRACTION
    tails: TailedLaw | None = None


MODELS: Mapping[str, Model] = {
    "8b": Model("qwen3-8b", RLBOOST_8B),
    "14b": Model("qwen3-14b", RLBOOST_14B),
    # No paper gives its lengths; those of 14B are used.
    "32b": Model("qwen3-32b", RLBOOST_14B, hosts=2),
}
HARDER: Mapping[str, Model] = {
    "14b-tails": Model("qwen3-14b", LengthLaw(5400.0, 1.2, 0.6)),
    # Weights take 15 GB of each device, so the cache has about half of its usual size.
    "14b-tails-cache": Model("qwen3-14b", LengthLaw(5400.0, 1.2, 0.6), local_memory=0.4),
}
"""14B with assumptions that make its rollout longer: longer tails, smaller caches of the reserved engines."""
RUNAWAY_LIMIT = 16_384
COMPOSED: Mapping[str, Model] = {
    "14b-runaway": Model("qwen3-14b", RLBOOST_14B, tails=rollpacker.law_of(RUNAWAY_LIMIT, rollpacker.HARD)),
}
"""14B with RollPacker's lengths: a short median, and a few prompts whose responses run away."""

ARTIFACT = (
    "training.micro_batch_groups=2",  # min_stream_batch_size: 16 responses, of groups of 8
    "seeding.eta=3",
    "seeding.initial_s=150",  # T_init
    "seeding.min_s=5",
    "engine.slots=256",  # max running requests
    "rollout.max_pending=32",  # at most 4 prompts of 8 samples are dispatched to an engine at a time
    "fleet.n_prem_max=10",  # more than any segment has
    "task.heldout_problems=1",  # evaluations are not measured
    "liveness.beat_s=10",  # a vanished host is detected within 5 s all the same, by its connections
    "liveness.dead_s=60",
    f"prices.preemptible_per_hour={PREEMPTIBLE_PER_HOUR}",
)

VARIANTS: Mapping[str, tuple[str, ...]] = {
    "gleaner": (),
    "algorithm-1": ("seeding.controller=feedback",),
    "algorithm-1-no-memory": ("seeding.controller=feedback", "seeding.memory=false"),
    "algorithm-2": ("rollout.balancing=published",),
    "paper": ("seeding.controller=feedback", "rollout.balancing=published"),
    "artifact": ("seeding.controller=artifact", "rollout.balancing=published"),
    "paper-capped": (
        "seeding.controller=feedback",
        "rollout.balancing=published",
        "fleet.n_prem_max=4",
    ),
    "capped": ("fleet.n_prem_max=4",),  # the paper's prices give 3.76 instances for 8B: a limit near four
    "no-seeding": ("seeding.initial_s=0", "seeding.min_s=0", "seeding.max_s=0"),
    "no-continuous-lb": ("rollout.continuous_lb=false",),
    "recompute": ("ablation.recompute=true",),
    "synchronous": ("ablation.synchronous_weights=true",),
    "rounds": ("rounds.mode=tail",),
    "rounds-auto": ("rounds.mode=auto",),
    "rounds-auto-model": ("rounds.mode=auto", "rounds.prompts_plan=model"),
    "static": ("ablation.every_instance=true",),
    "disaggregated": (
        "ablation.every_instance=true",
        "seeding.initial_s=0",
        "seeding.min_s=0",
        "seeding.max_s=0",
    ),
}
"""Settings over those of the artifact."""


@dataclass(frozen=True, slots=True)
class Around:
    """Common settings of all cells. traces: folder of the segments, None: generated ones. extra: variants
    named on the command line."""

    traces: Path | None = None
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def variant(self, name: str) -> tuple[str, ...]:
        """Its settings. Raises KeyError for an unknown variant."""
        return {**VARIANTS, **dict(self.extra)}[name]


def setting(cell: Cell, around: Around) -> RunSetup:
    """The setting of a cell. Raises TraceError where a segment cannot be read."""
    if cell.model in rollpacker.MODELS:
        return rollpacker.setting(cell)
    model = {**MODELS, **HARDER, **COMPOSED}[cell.model]
    scale = cell.token_scale or model.scale
    nodes = cell.hosts if cell.kind == "colocated" and cell.hosts else model.hosts
    sets = [*ARTIFACT, f"prices.reserved_per_hour={RESERVED_PER_HOUR * nodes}", f"job.seed={cell.seed}"]
    sets += [f"job.steps={cell.steps or 1000}", *around.variant(cell.variant)]
    if cell.limit:
        sets.append(f"rollout.max_new_tokens={cell.limit}")
    if cell.kind == "colocated":
        sets.append("fleet.n_prem_max=0")
    if cell.kind in ("static", "chosen"):
        sets.append(f"fleet.n_prem_max={cell.hosts}")
    law = model.law
    words = WhatIfOptions(
        model=model.shape,
        reserved=f"h100x{8 * nodes}:tp2",
        preemptible="h100x2:tp2",
        lengths=f"{law.median},{law.sigma},{law.correlation}",
        token_scale=scale,
        gbit_s=RESERVED_GBIT_S,
        boot_s=60.0,
    )
    made = setting_of(load(BASE, sets), words)
    rows = max(1, round(PROMPT_TOKENS / scale))
    job_model = replace(
        made.job_model,
        law=model.tails or made.job_model.law,
        scorer=replace(made.job_model.scorer, prompt_rows=(rows, rows)),
        passes=Passes(recompute=True, old_logprobs=True, reference=True),  # artifact
        offload=True,  # artifact: the optimizer, not the parameters
    )
    # Assumed of a new machine: the paper emulates instances on machines that run already.
    memory = msgspec.structs.replace(
        made.reserved.assumptions, memory_fraction=MEMORY_FRACTION, reserved_memory_bytes=0.0
    )
    paces = Paces(boot_s=60.0 if cell.kind == "segment" else 1.0)
    trace = trace_of(cell, around)
    fleet = msgspec.structs.replace(made.config.fleet, trace=trace.name if trace is not None else "")
    config = msgspec.structs.replace(made.config, fleet=fleet)
    return replace(
        made,
        config=config,
        job_model=job_model,
        reserved=replace(
            made.reserved,
            assumed=msgspec.structs.replace(memory, memory_fraction=model.local_memory),
        ),
        preemptible=replace(made.preemptible, assumed=memory),
        trace=trace,
        paces=paces,
        preemptible_bytes_s=PREEMPTIBLE_GBIT_S * 1e9 / 8,
    )


def trace_of(cell: Cell, around: Around) -> Trace | None:
    """Joins and removals of its preemptible hosts; None: always there. Raises TraceError."""
    if cell.kind != "segment":
        return scenarios.trace_of(cell)
    if around.traces is None:
        return segments.made(cell.segment)
    found = segments.read(around.traces, cell.segment)
    return Trace(f"segment-{cell.segment}", found.events)

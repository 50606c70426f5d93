"""RollPacker's set-ups as settings: machines, models, lengths, variants of rounds.

Owns every number that is taken from the paper (arXiv 2509.21009) or assumed for it, each with its source. The
set-up is co-located: all devices are one reserved host with one trainer, engines roll out on all of them,
then the trainer has all of them. There are no preemptible hosts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from bench.evaluation.cells import Cell
from gleaner.configs.load import load
from gleaner.rlctl.what_if_setup import WhatIfOptions, setting_of
from gleaner.sim.models.lengths import LengthLaw
from gleaner.sim.models.tails import TailedLaw
from gleaner.sim.models.training_cost import Passes
from gleaner.sim.run_setup import Paces, RunSetup

PROMPT_TOKENS = 128
"""Assumed of every prompt."""
CARD_GBIT_S = 400.0
"""Paper, section 6: network of a node; a co-located job moves no weights over it."""
MEMORY_FRACTION = 0.8
"""Assumed: the share of a device that weights and cache fill while its engine rolls out."""
HARD = 5
"""Assumed: percent of prompts whose responses run away. No paper gives it; the page sweeps it."""
PERSISTENCE, STRAY = 0.9, 0.005
"""Assumed: share of a hard prompt's responses that run away, and of any other prompt's."""
MEDIAN, SIGMA, CORRELATION = 570.0, 0.68, 0.5
"""Median: the limit of 14B/16k over 29, as the paper has 25 to 32; sigma: with it P75 is 900, paper 755 to
1,100 (14B/16k, section 2.2), used for all three models. Correlation in a group: assumed."""
AWAY_SIGMA = 0.5
"""Assumed: the median of a response that runs away is the limit, so half of them end there."""
HALVING_TOKENS = 8192.0
"""Assumed: tokens with which a response loses half of its chance of being right, so that a bias of lengths is
seen in rewards."""
BASE = "rlboost-14b"


@dataclass(frozen=True, slots=True)
class Model:
    """One of the paper's. devices: H800 there, H100 here; tp: of its rollout; limit: longest response. scale:
    tokens of the model per message token."""

    shape: str
    devices: int
    tp: int
    limit: int
    scale: int = 128


MODELS: Mapping[str, Model] = {
    "7b-8k": Model("qwen2_5-7b", 16, 1, 8192),
    "14b-16k": Model("qwen2_5-14b", 32, 2, 16_384),
    "32b-32k": Model("qwen2_5-32b", 64, 2, 32_768),
}
COMMON = (
    "rollout.prompts=128",
    "rollout.samples=8",
    "training.micro_batch_groups=8",  # assumed: 64 responses
    "engine.slots=256",
    "fleet.n_prem_max=0",
    "task.heldout_problems=1",  # evaluations are not measured
    "liveness.beat_s=10",
    "liveness.dead_s=60",
)
TAIL = "rounds.mode=tail"
GANG = ("training.backend=fsdp2", "training.processes=2")
"""A trainer that can be halved."""
FEW_PROBLEMS = 320
"""Problems of a job whose epochs repeat: two and a half steps of 128 prompts each."""


def _few(factor: float) -> tuple[str, ...]:
    return TAIL, f"rounds.prompts_factor={factor}", f"task.train_problems={FEW_PROBLEMS}"


BOTH = (TAIL, "rounds.samples_factor=1.25")
VARIANTS: Mapping[str, tuple[str, ...]] = {
    "off": (),
    "tail": (TAIL,),
    "samples": (TAIL, "rounds.prompts_factor=1", "rounds.samples_factor=1.25"),
    "both": BOTH,
    "new-seeds": (TAIL, "rounds.seeds=new"),
    "by-time": (TAIL, "rounds.race=time"),
    "preset": ("rounds.preset=rollpacker",),
    "stairs-paper": (*GANG, "seeding.stairs=paper"),
    "stairs-model": (*GANG, "seeding.stairs=model"),
    "tail-stairs-paper": (TAIL, *GANG, "seeding.stairs=paper"),
    "tail-stairs-model": (TAIL, *GANG, "seeding.stairs=model"),
    **{f"tail-{factor}": (TAIL, f"rounds.prompts_factor={factor}") for factor in (1.125, 1.375, 1.5, 1.75)},
    **{f"few-{factor}": _few(factor) for factor in (1.125, 1.25, 1.375)},
    **{f"history-{factor}": (*_few(factor), "rounds.history=true") for factor in (1.125, 1.25)},
    "auto": ("rounds.mode=auto",),
    "auto-model": ("rounds.mode=auto", "rounds.prompts_plan=model"),
}
"""Settings over the common ones. `tail` has the defaults: 1.25 x the prompts, 1 x the samples, own seeds, a
race of tokens."""


def law_of(limit: int, hard_percent: int) -> TailedLaw:
    """The lengths of responses of at most `limit` tokens."""
    away = LengthLaw(float(limit), AWAY_SIGMA, 0.0)
    return TailedLaw(
        MEDIAN, SIGMA, CORRELATION, hard=hard_percent / 100, persistence=PERSISTENCE, stray=STRAY, away=away
    )


def setting(cell: Cell) -> RunSetup:
    """The setting of a cell of one of `MODELS`; its `hosts`, if there are any, are of eight devices each."""
    model = MODELS[cell.model]
    devices = 8 * cell.hosts or model.devices
    scale = cell.token_scale or model.scale
    sets = [*COMMON, f"job.seed={cell.seed}", f"job.steps={cell.steps}"]
    sets += [f"rollout.max_new_tokens={model.limit}", *VARIANTS[cell.variant]]
    words = WhatIfOptions(
        model=model.shape,
        reserved=f"h100x{devices}:tp{model.tp}",
        preemptible=f"h100x{model.tp}:tp{model.tp}",
        token_scale=scale,
        gbit_s=CARD_GBIT_S,
    )
    made = setting_of(load(BASE, sets), words)
    rows = max(1, round(PROMPT_TOKENS / scale))
    law = law_of(model.limit, HARD if cell.hard is None else cell.hard)
    scorer = replace(made.job_model.scorer, prompt_rows=(rows, rows), halving_rows=HALVING_TOKENS / scale)
    passes = Passes(recompute=True, old_logprobs=True, reference=True)  # as RLBoost's artifact
    memory = msgspec.structs.replace(
        made.reserved.assumptions, memory_fraction=MEMORY_FRACTION, reserved_memory_bytes=0.0
    )
    return replace(
        made,
        job_model=replace(made.job_model, law=law, scorer=scorer, passes=passes, offload=True),
        reserved=replace(made.reserved, assumed=memory),
        paces=Paces(),
    )

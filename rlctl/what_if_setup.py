"""What-if setting from command-line options: model, machines, lengths, a trace.

Owns the options' syntax and errors, and the conversion of a job's settings to those of a simulated job. With
a token scale of s, one message token represents s tokens of the modelled model, so lengths are divided by s.
"""

import re
from dataclasses import dataclass, replace

import msgspec

from gleaner.actors.cluster.widths import fitting
from gleaner.configs import trace
from gleaner.configs.schema import Config
from gleaner.configs.trace import Trace, TraceError
from gleaner.rlctl.errors import usage
from gleaner.sim.models.engine_cost import DoesNotFit
from gleaner.sim.models.hardware import UnknownHardware
from gleaner.sim.models.host_devices import HostDevices
from gleaner.sim.models.job_model import JobModel
from gleaner.sim.models.lengths import LengthLaw
from gleaner.sim.models.scorer import ScorerLaw
from gleaner.sim.models.shapes import ModelShape, UnknownModel, model_shape
from gleaner.sim.network_path import Profile
from gleaner.sim.run_setup import Paces, RunSetup, refuse_hosts

_RIG = re.compile(r"(?P<name>[a-z0-9_]+?)(?:x(?P<devices>\d+))?(?::tp(?P<tp>\d+))?")
VOCABULARY = 128
"""Of a made model: its tokenizer knows letters and few other tokens."""


@dataclass(frozen=True, slots=True)
class WhatIfOptions:
    """The options as typed; an empty text means the value that follows from the settings.

    Attributes:
        model: a name of `sim/models/shapes.toml`. reserved, preemptible: `NAME[xDEVICES][:tpN]`.
        lengths: `MEDIAN,SIGMA,CORRELATION` of responses, in tokens of the model.
        token_scale, frame_rows: see `gleaner.sim.models.batching`.
        gbit_s: of each host's network card. boot_s: of a machine, up to twice that of a preemptible one.
        hours: virtual, at most. notice_s: time between the notice and a trace's removal of a host; None: as
            in the trace.
    """

    model: str = ""
    reserved: str = "cpu_core"
    preemptible: str = "cpu_core"
    lengths: str = ""
    token_scale: int = 1
    frame_rows: int = 1
    gbit_s: float = 10.0
    boot_s: float = 1.0
    hours: float = 24.0
    notice_s: float | None = None


def setting_of(config: Config, words: WhatIfOptions) -> RunSetup:
    """The setting of a what-if. Raises CommandError for invalid options, or options that do not fit
    together."""
    reserved = rig_of("--reserved", words.reserved)
    preemptible = _at_width(config, words, rig_of("--preemptible", words.preemptible))
    limit = config.rollout.max_new_tokens
    try:
        shape = model_shape(words.model) if words.model else ModelShape.of(config.model, VOCABULARY)
        scaled = scaled_down(config, words.token_scale)
        longest = scaled.engine.max_prompt_tokens
        job_model = JobModel(
            shape,
            _lengths(words.lengths, limit),
            scorer=ScorerLaw(prompt_rows=(-(-longest // 8), -(-longest // 2))),
            token_scale=words.token_scale,
            frame_rows=words.frame_rows,
        )
        scaled = job_model.settings(scaled)
        for host_devices in (reserved, preemptible):
            job_model.engine(scaled, host_devices)
    except (UnknownModel, DoesNotFit, ValueError) as problem:
        raise usage(str(problem)) from problem
    return RunSetup(
        scaled,
        seed=config.job.seed,
        job_model=job_model,
        reserved=reserved,
        preemptible=preemptible,
        trace=_trace(config.fleet.trace, words.notice_s),
        deadline_s=words.hours * 3600,
        link=Profile(),
        egress_bytes_s=words.gbit_s * 1e9 / 8,
        paces=Paces(boot_s=words.boot_s, boot_spread_s=words.boot_s),
    )


def rig_of(option: str, text: str) -> HostDevices:
    """The rig of a host: `h100x8:tp2` means eight H100 in groups of two. Raises CommandError."""
    found = _RIG.fullmatch(text)
    if found is None:
        raise usage(f"{option} {text!r}: expected NAME, NAMExDEVICES or NAMExDEVICES:tpN, as in h100x8:tp2")
    tp = int(found["tp"] or 1)
    try:
        return HostDevices(found["name"], int(found["devices"] or tp), tp)
    except (UnknownHardware, ValueError) as problem:
        raise usage(f"{option} {text}: {problem}") from problem


def _at_width(config: Config, words: WhatIfOptions, rig: HostDevices) -> HostDevices:
    """The rig with the width of the job's begin, if the settings have widths."""
    widths = config.engine.widths
    if not widths:
        return rig
    width = fitting(widths, widths[0], rig.devices)
    if not width:
        raise usage(
            f"--preemptible {words.preemptible}: none of engine.widths, {widths}, cuts its "
            "devices into equal groups; add one that does"
        )
    return replace(rig, tp=width)


def scaled_down(config: Config, scale: int) -> Config:
    """The same job with lengths in message tokens. Raises ValueError for a scale that leaves no tokens."""
    if scale == 1:
        return config
    if scale < 1 or scale > config.rollout.max_new_tokens:
        raise ValueError(
            f"a token scale of {scale} and responses of at most {config.rollout.max_new_tokens} tokens: "
            "expected a scale from 1 to a fraction of that"
        )
    rollout = msgspec.structs.replace(config.rollout, max_new_tokens=config.rollout.max_new_tokens // scale)
    engine = msgspec.structs.replace(
        config.engine, max_prompt_tokens=max(1, config.engine.max_prompt_tokens // scale)
    )
    return msgspec.structs.replace(config, rollout=rollout, engine=engine)


def _lengths(text: str, limit: int) -> LengthLaw:
    if not text:
        return LengthLaw(median=max(1.0, limit * 0.4), sigma=0.8, correlation=0.6)
    try:
        median, sigma, correlation = map(float, text.split(","))
        return LengthLaw(median, sigma, correlation)
    except ValueError as problem:
        raise ValueError(f"--lengths {text}: expected MEDIAN,SIGMA,CORRELATION: {problem}") from problem


def _trace(path: str, notice_s: float | None) -> Trace | None:
    try:
        if not path:
            return None
        found = trace.read(path)
        refuse_hosts(found)
        return found if notice_s is None else trace.with_notice(found, notice_s)
    except TraceError as problem:
        raise usage(str(problem)) from problem

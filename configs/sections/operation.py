"""Settings of bounds, traces, loggers and of comparisons."""

from typing import Annotated, Literal

from msgspec import Meta

from gleaner.configs.sections.values import Count, Section


class Limits(Section, frozen=True, kw_only=True):
    """Bounds on everything that could grow."""

    mailbox: Count = 1024
    """User messages waiting at one actor; beyond it an ask is answered `Overloaded`."""
    ring_frames: Count = 4096
    """Unacknowledged token frames an instance keeps, one a decode step; a full ring pauses decoding."""
    credit_frames: Count = 256
    """Token frames an instance may send ahead of the manager's acknowledgement."""
    journal_events: Count = 20_000
    """Events that the manager journals before a snapshot replaces them; one is made at the release of a batch
    too. Bounds its replay after a restart."""
    journal_bytes: Count = 64 * 2**20
    """Bytes of token frames that the manager journals before a snapshot replaces them, or the size of a
    snapshot of the open requests, if that is more. Half a second of replay; with fewer, more snapshots are
    written."""
    job_events: Count = 300
    """Events that the controller journals before a snapshot replaces them, at the end of a step; most steps
    have two or three. Bounds its replay after a restart."""
    log_bytes: Annotated[int, Meta(ge=64 * 1024)] = 16 * 2**20
    """Size of one log file before it is rotated; one older file is kept."""


class Traces(Section, frozen=True, kw_only=True):
    """Spans of messages, from actor to actor and from process to process (OpenTelemetry)."""

    exporter: Literal["none", "console", "file", "otlp"] = "none"
    """Destination of the spans: none, which costs nothing; each process's standard error; a file of JSON
    lines beside its log; or an OpenTelemetry collector. All but "none" need `pip install 'gleaner[traces]'`.
    """
    endpoint: Annotated[str, Meta(pattern=r"^(https?://\S+)?\Z")] = "http://127.0.0.1:4318/v1/traces"
    """Address of the collector, for "otlp": OTLP over HTTP."""
    sample_ratio: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """Share of the traces that are kept; a trace is kept or left out as a whole."""


class Loggers(Section, frozen=True, kw_only=True):
    """Where `rlctl run` shows the run's figures beside its own report. They need `pip install
    'gleaner[loggers]'`. One that fails is reported and dropped, and the run goes on."""

    tensorboard: bool = False
    """Event files in `tensorboard/` of the run's folder."""
    wandb: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{0,128}\Z")] = ""
    """Project of Weights & Biases that gets a run of the same id; "" = none."""
    wandb_offline: bool = False
    """Keep what would be sent in `wandb/` of the run's folder, for `wandb sync`; needs no network."""


class Ablation(Section, frozen=True, kw_only=True):
    """Features that comparisons switch off, to measure their value (docs/evaluation.md); for no other use."""

    recompute: bool = False
    """Requests of a lost instance begin anew, as in systems that collect only whole responses."""
    synchronous_weights: bool = False
    """An instance that joins within a step gets weights with the next one, as in systems that push
    weights."""
    every_instance: bool = False
    """`fleet.n_prem_max` preemptible hosts are wished for, however many Algorithm 1 does."""

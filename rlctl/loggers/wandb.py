"""Weights & Biases sink: a run of the same id there, or offline files.

Adapter; needs the package `wandb`, which sends from a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gleaner.rlctl.loggers.figures import Figures
from gleaner.rlctl.loggers.sink import SinkFailed

if TYPE_CHECKING:
    from wandb.sdk.wandb_run import Run


class WandbSink:
    """The run `run_id` of `project`; a resumed run continues there. `offline`: files in `folder`/wandb that
    `wandb sync` sends later; the network is not used. Raises SinkFailed."""

    def __init__(
        self, project: str, run_id: str, folder: Path, config: Mapping[str, object], *, offline: bool
    ) -> None:
        try:
            import wandb
        except ImportError as problem:
            raise SinkFailed(
                f"Weights & Biases: {problem}; pip install 'gleaner[loggers]' or set loggers.wandb = \"\""
            ) from problem
        self._error: type[Exception] = wandb.errors.Error
        self._end_service: Callable[[], None] = wandb.teardown
        try:
            self._run: Run = wandb.init(
                project=project,
                id=run_id,
                name=run_id,
                dir=str(folder),
                config=dict(config),
                mode="offline" if offline else "online",
                resume=None if offline else "allow",
                settings=wandb.Settings(silent=True, console="off"),
            )
            for axis in ("step", "seconds"):
                self._run.define_metric(axis, hidden=True)
            for group, axis in (
                ("train", "step"),
                ("eval", "step"),
                ("fleet", "seconds"),
                ("run", "seconds"),
            ):
                self._run.define_metric(f"{group}/*", step_metric=axis)
        except (self._error, OSError) as problem:
            raise SinkFailed(
                f"Weights & Biases: {problem}; `wandb login`, or loggers.wandb_offline = true"
            ) from problem
        self.where = f"wandb sync {Path(self._run.dir).parent}" if offline else str(self._run.url)

    def write(self, figures: Figures) -> None:
        """See `Sink`."""
        try:
            self._run.log({**figures.values, figures.over: figures.at})
        except (self._error, OSError) as problem:
            raise SinkFailed(f"Weights & Biases: {problem}") from problem

    def close(self) -> None:
        """See `Sink`."""
        try:
            self._run.finish()
            self._end_service()  # only then are the buffered figures on disk, or sent
        except (self._error, OSError) as problem:
            raise SinkFailed(f"Weights & Biases: {problem}") from problem

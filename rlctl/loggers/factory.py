"""Opens the loggers that the settings name, for one run."""

import msgspec

from gleaner.configs.schema import Config, Loggers
from gleaner.rlctl.loggers.sink import Sink
from gleaner.rlctl.runs import RunDir


def open_sinks(run: RunDir, config: Config, wanted: Loggers) -> list[Sink]:
    """The sinks of the loggers that are on in `wanted`. Raises SinkFailed."""
    sinks: list[Sink] = []
    if wanted.tensorboard:
        from gleaner.rlctl.loggers.tensorboard import TensorBoardSink

        sinks.append(TensorBoardSink(run.path / "tensorboard", run.config_file.stat().st_mtime))
    if wanted.wandb:
        from gleaner.rlctl.loggers.wandb import WandbSink

        settings = msgspec.to_builtins(config)
        sinks.append(WandbSink(wanted.wandb, run.id, run.path, settings, offline=wanted.wandb_offline))
    return sinks

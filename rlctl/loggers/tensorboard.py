"""TensorBoard sink: event files in a folder; `tensorboard --logdir` shows them.

Adapter; needs the package `tensorboard`, and imports torch, which has its writer.
"""

from pathlib import Path

from gleaner.rlctl.loggers.figures import Figures
from gleaner.rlctl.loggers.sink import SinkFailed


class TensorBoardSink:
    """Event files in `folder`; each start or resume of the run adds one, and TensorBoard joins them.

    began_at: start of the run in seconds since 1970; the times of its figures follow from it. Raises
    SinkFailed.
    """

    def __init__(self, folder: Path, began_at: float) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as problem:
            raise SinkFailed(
                f"TensorBoard: {problem}; pip install 'gleaner[loggers]' or set loggers.tensorboard = false"
            ) from problem
        self._began_at = began_at
        self.where = f"tensorboard --logdir {folder}"
        try:
            self._writer = SummaryWriter(str(folder))
        except OSError as problem:
            raise SinkFailed(f"TensorBoard: {folder}: {problem}") from problem

    def write(self, figures: Figures) -> None:
        """See `Sink`."""
        try:
            for name, value in figures.values.items():
                self._writer.add_scalar(name, value, figures.at, walltime=self._began_at + figures.t_s)
            self._writer.flush()
        except (OSError, ValueError) as problem:
            raise SinkFailed(f"TensorBoard: {problem}") from problem

    def close(self) -> None:
        """See `Sink`."""
        try:
            self._writer.close()
        except (OSError, ValueError) as problem:
            raise SinkFailed(f"TensorBoard: {problem}") from problem

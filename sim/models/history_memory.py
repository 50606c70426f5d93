"""SimHistory: an `gleaner.actors.training.records.History` as a list.

Owns the writer. The list belongs to the run: it outlives the process that writes, as a file does whose
records were all passed to the operating system.
"""

from collections.abc import Callable, Mapping

import msgspec

from gleaner.actors.training.account import Meter
from gleaner.actors.training.history import HistoryError, HistoryFull
from gleaner.actors.training.records import AnyRecord, Step, began_s, hosts_after, served_after
from gleaner.actors.training.usage import ResourceUsage

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyRecord)


class SimHistory:
    """See the module.

    Args:
        records: of the run so far; new ones are appended.
        refuses: whether the disk is full now.
    """

    def __init__(self, records: list[AnyRecord], refuses: Callable[[], bool] = lambda: False) -> None:
        self._records, self._refuses = records, refuses
        self._last_t_s, self._last_step, self._served = 0.0, 0, False
        self._step_began_s: float | None = None
        self._hosts: Mapping[str, str] = {}
        self._meter = Meter()
        for record in records:
            self._follow(record)

    @property
    def last_t_s(self) -> float:
        """See `History`."""
        return self._last_t_s

    @property
    def last_step(self) -> int:
        """See `History`."""
        return self._last_step

    @property
    def served(self) -> bool:
        """See `History`."""
        return self._served

    @property
    def step_began_s(self) -> float | None:
        """See `History`."""
        return self._step_began_s

    @property
    def hosts(self) -> Mapping[str, str]:
        """See `History`."""
        return self._hosts

    @property
    def used(self) -> ResourceUsage:
        """See `History`."""
        return self._meter.used

    def write(self, record: AnyRecord) -> None:
        """See `History`. Raises `HistoryError` for a record that could not be read back, `HistoryFull`."""
        try:
            kept = _decoder.decode(_encoder.encode(record))
        except msgspec.ValidationError as error:
            raise HistoryError(f"a record that cannot be read back: {error}: {record}") from error
        if self._refuses():
            raise HistoryFull("the history of the run: No space left on device: free space there")
        self._records.append(kept)
        self._follow(kept)

    def _follow(self, record: AnyRecord) -> None:
        self._meter.observe(record)
        self._last_t_s = max(self._last_t_s, record.t_s)
        self._served = served_after(record, self._served)
        self._step_began_s = began_s(record, self._step_began_s)
        self._hosts = hosts_after(record, self._hosts)
        if isinstance(record, Step):
            self._last_step = max(self._last_step, record.step)

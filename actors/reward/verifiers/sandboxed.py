"""`Sandboxed`: a verifier's sandbox, from its first use to the verifier's end."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from gleaner.actors.reward.sandbox.detection import detect
from gleaner.actors.reward.sandbox.host_end import HostSandbox
from gleaner.actors.reward.sandbox.port import Isolation, Sandbox
from gleaner.actors.reward.sandbox.program_pipes import SandboxFailed
from gleaner.actors.reward.verdicts import Judgement
from gleaner.actors.reward.verifiers import timed_scoring
from gleaner.actors.reward.verifiers.timed_scoring import Clock

_T = TypeVar("_T")


class Sandboxed:
    """Base of verifiers that have one sandbox. prepare: as for `HostSandbox`.

    readable: more paths that its programs may read. devices: of GPUs that they may use.
    """

    readable: Sequence[str] = ()
    devices: Sequence[str] = ()

    clock: Clock = staticmethod(time.monotonic)

    def __init__(self, isolation: str, prepare: Sequence[str | tuple[str, object]]) -> None:
        self._isolation, self._prepare = isolation, list(prepare)
        self._sandbox: Sandbox | None = None

    def open(self) -> None:
        """Start the sandbox. Raises `NoSandbox`, `SandboxFailed`."""
        self.close()
        host = detect(self._isolation)
        if self.devices and host.isolation is not Isolation.NAMESPACES:
            host.release()
            raise SandboxFailed(
                "programs that use a GPU need a /proc of their own, which only the isolation `namespaces` "
                f"gives; here: {host.better or 'reward.sandbox.isolation is ' + self._isolation}"
            )
        sandbox = HostSandbox(host, self._prepare, readable=self.readable, devices=self.devices)
        sandbox.start()
        self._sandbox = sandbox

    def close(self) -> None:
        """End the sandbox, if there is one."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def judged(
        self,
        items: Sequence[_T],
        judge: Callable[[_T], Judgement],
        deadline_s: float,
    ) -> list[Judgement]:
        """See `timed_scoring.judged`."""
        self.sandbox  # noqa: B018  # its start is no response's time
        return timed_scoring.judged(items, judge, deadline_s, self.clock)

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox, started where it was not. Raises `NoSandbox`, `SandboxFailed`."""
        if self._sandbox is None:
            self.open()
        assert self._sandbox is not None
        return self._sandbox

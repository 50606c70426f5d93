"""A verifier's sandbox: started at its first use, ended with the verifier."""

from collections.abc import Sequence

from actors.reward.sandbox.detection import detect
from actors.reward.sandbox.host_end import HostSandbox
from actors.reward.sandbox.port import Sandbox


class Sandboxed:
    """Base of verifiers that have one sandbox. prepare: as for `HostSandbox`."""

    def __init__(self, isolation: str, prepare: Sequence[str | tuple[str, object]]) -> None:
        self._isolation, self._prepare = isolation, list(prepare)
        self._sandbox: Sandbox | None = None

    def open(self) -> None:
        """Start the sandbox. Raises `NoSandbox`, `SandboxFailed`."""
        self.close()
        sandbox = HostSandbox(detect(self._isolation), self._prepare)
        sandbox.start()
        self._sandbox = sandbox

    def close(self) -> None:
        """End the sandbox, if there is one."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox, started where it was not. Raises `NoSandbox`, `SandboxFailed`."""
        if self._sandbox is None:
            self.open()
        assert self._sandbox is not None
        return self._sandbox

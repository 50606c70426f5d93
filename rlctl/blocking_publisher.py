"""Blocking publisher for synchronous training loops: the client on its own thread.

Owns that thread. `weight_publisher` defines what a publication does and when a call returns.
"""

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from gleaner.nodeagent.exit_codes import CannotRun
from gleaner.rlctl.client import Cluster, connect, connect_to_run
from gleaner.rlctl.client_waits import WAIT_S
from gleaner.rlctl.errors import CommandError
from gleaner.rlctl.runs import find_driven
from gleaner.rlctl.sharded_publisher import OwnParts, Ranks
from gleaner.rlctl.transfer_agent import CannotPublish
from gleaner.rlctl.weight_publisher import ModelConfig, Publication, State
from gleaner.supervisor import AskFailed
from gleaner.transport.keys import NodeKeys

T = TypeVar("T")


class Publisher:
    """Publishes weights to a cluster; from one thread at a time. Use it in a `with` block, or `close` it.

    Args:
        address: "tcp://HOST:PORT" of the head, or the folder of runs (its newest running run is used).
        keys, head_key: see `connect`.
        host: host of this machine whose agent serves; "" for a reserved one.
        wait_s: longest wait for that agent, when the job has just begun.

    Raises:
        CannotPublish: the cluster does not exist.
    """

    def __init__(
        self,
        address: str,
        keys: NodeKeys | Path | str | None = None,
        *,
        head_key: str = "",
        host: str = "",
        wait_s: float = WAIT_S,
    ) -> None:
        self._host, self._wait_s = host, wait_s
        self._last: Publication | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gleaner-publisher", daemon=True)
        self._thread.start()
        try:
            self._connected = (
                connect(address, keys, head_key=head_key)
                if address.startswith("tcp://")
                else connect_to_run(find_driven(Path(address)))
            )
            self._cluster: Cluster = self._do(self._connected.__aenter__())
        except (CannotRun, CommandError) as problem:
            self._end()
            raise CannotPublish(str(problem)) from problem
        except BaseException:
            self._end()
            raise

    def publish(
        self,
        weights: State | Path | str,
        version: int,
        *,
        config: ModelConfig = None,
        ranks: Ranks | None = None,
        parts: OwnParts | None = None,
        model_changed: bool = False,
    ) -> Publication:
        """Publish a version; see `Cluster.publish`. The tensors may change again once it returns. A failure
        of a version after that is raised by the next call, by `wait` or by `close`; a failed load on the
        instances is raised by the next call."""
        self._last = self._do(
            self._cluster.publish(
                weights,
                version,
                config=config,
                host=self._host,
                wait_s=self._wait_s,
                ranks=ranks,
                parts=parts,
                model_changed=model_changed,
            )
        )
        return self._last

    def wait(self) -> None:
        """Wait until instances may pull the newest published version. Raises CannotPublish."""
        if self._last is not None:
            last, self._last = self._last, None
            self._do(_known(last))

    def close(self) -> None:
        """Wait for the last version, and disconnect from the cluster. Raises CannotPublish; a second call
        does nothing."""
        if not self._thread.is_alive():
            return
        try:
            self.wait()
        finally:
            self._do(self._connected.__aexit__(None, None, None))
            self._end()

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _do(self, work: Coroutine[object, object, T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except AskFailed as problem:
            raise CannotPublish(f"the cluster does not answer: {problem}") from problem

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _known(publication: Publication) -> None:
    await publication.known()

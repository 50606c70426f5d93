"""SimBlobs: blobs of reward stages in the memory of a simulated host, which goes with it.

Owns the port `gleaner.actors.reward.blobs.Blobs` on a mapping. Left out: the limit, since a run makes few.
"""

from collections.abc import MutableMapping
from pathlib import Path

from gleaner.actors.reward.blobs import NoBlob
from gleaner.actors.reward.carried import digest_of
from gleaner.actors.reward.scoring import WorkerSpec


class SimBlobs:
    """See the module. memory: of the host; directory: where its blobs are."""

    def __init__(self, memory: MutableMapping[Path, bytes], directory: Path) -> None:
        self._memory, self.directory = memory, directory

    @staticmethod
    def of_worker(memory: MutableMapping[Path, bytes], spec: WorkerSpec) -> "SimBlobs | None":
        """Those of the host on which a worker is; None for one without stages."""
        directory = str((spec.config or {}).get("blobs", ""))
        return SimBlobs(memory, Path(directory)) if directory else None

    def has(self, digest: str) -> bool:
        """See `Blobs`."""
        return self.directory / digest in self._memory

    def put(self, content: bytes) -> str:
        """See `Blobs`."""
        digest = digest_of(content)
        self._memory[self.directory / digest] = content
        return digest

    def read(self, digest: str) -> bytes:
        """See `Blobs`. Raises NoBlob."""
        content = self._memory.get(self.directory / digest)
        if content is None or digest_of(content) != digest:
            raise NoBlob(f"blob {digest} is not here")
        return content

    def close(self) -> None:
        """See `Blobs`: the host keeps them."""

"""`ServedFolder`: a verified image as a Hugging Face folder.

It is for servers that load nothing else. Owns the folder, beside the image in shared memory, and the cleanup
of dead processes' folders. The orders to our loader inside of a server, and its reports, are files there too
(`sglang_plugin`). Adapter: files.

An image is a safetensors file already, so its folder has a link to it. One with bytes that no tensor has is
copied without them, once, within the kernel; either is removed when the server has loaded it.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gleaner.actors.model.config_text import hub_settings
from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.protocol.weights import Fetched
from gleaner.actors.weights.image.reader_locks import in_file
from gleaner.actors.weights.image.safetensors_file import has_padding, header

PREFIX = "served-"
WEIGHTS = "model.safetensors"
ORDER, REPORTS = "order.json", "loaded-*.json"
_COPY_BYTES = 1 << 30


def version_name(fetched: Fetched) -> str:
    """The name of these weights at a server."""
    return f"v{fetched.version}-{fetched.root[:4].hex()}"


class _Report(msgspec.Struct):
    """The report of a server's rank: why it did not load, or ""."""

    problem: str


class ServedFolder:
    """The folder of one process, made when the first image arrives; `remove` it at the end."""

    def __init__(self) -> None:
        self._path: Path | None = None

    def write(self, fetched: Fetched, *, weights: bool = True) -> Path:
        """A folder with the model's settings and, if wanted, these weights, unless they are there. Blocks
        where it copies. Raises OSError, NotSafetensors."""
        folder = self._made(fetched)
        (folder / "config.json").write_bytes(hub_settings(fetched.model_config, fetched.tensors[0].dtype))
        if weights and not (folder / WEIGHTS).exists():
            image = Path(fetched.path)
            placed = in_file(image, fetched.tensors)
            if has_padding(
                fetched.tensors, image.stat().st_size - placed[0].offset + fetched.tensors[0].offset
            ):
                copy_weights(image, placed, folder / WEIGHTS)
            else:
                (folder / WEIGHTS).symlink_to(image.absolute())
        return folder

    def write_order(self, fetched: Fetched) -> Path:
        """A file with the path of the image and the offset of each tensor, for our loader. Raises OSError,
        NotSafetensors."""
        order = self._made(fetched) / ORDER
        for report in order.parent.glob(REPORTS):
            report.unlink()
        placed = in_file(fetched.path, fetched.tensors)
        rows = [(spec.name, spec.dtype, spec.shape, spec.offset, spec.nbytes) for spec in placed]
        order.write_bytes(msgspec.json.encode({"path": fetched.path, "tensors": rows}))
        return order

    def reports(self, order: Path) -> list[str]:
        """The reports of the ranks that carried the order out so far: why one did not, or ""."""
        found = sorted(order.parent.glob(REPORTS))
        return [msgspec.json.decode(report.read_bytes(), type=_Report).problem for report in found]

    def forget(self, fetched: Fetched) -> None:
        """The server has loaded these weights: free their memory; the settings stay."""
        folder = self._made(fetched)
        for left in (folder / WEIGHTS, folder / ORDER, *folder.glob(REPORTS)):
            left.unlink(missing_ok=True)

    def log(self) -> Path:
        """The log file for a server that reads this folder."""
        assert self._path is not None, "write comes first"
        return self._path / "server.log"

    def remove(self) -> None:
        """Remove the folder; a second call does nothing."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)

    def _made(self, fetched: Fetched) -> Path:
        """The folder of these weights."""
        store = Path(fetched.path).parent.parent  # an image has a folder of its own
        if self._path is None:
            _sweep(store)
            self._path = store / f"{PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
        folder = self._path / version_name(fetched)
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def copy_weights(image: Path, tensors: Sequence[TensorSpec], target: Path) -> None:
    """Copy the tensors at these offsets of a file into a safetensors file, which appears when it is whole."""
    draft = target.with_suffix(".partial")
    with image.open("rb") as source, draft.open("wb", buffering=0) as file:
        file.write(header(_together(tensors), sum(spec.nbytes for spec in tensors)))
        for begin, end in _runs(tensors):
            at = begin
            while at < end:
                copied = os.sendfile(file.fileno(), source.fileno(), at, min(_COPY_BYTES, end - at))
                if copied == 0:
                    raise OSError(f"{image} ends at byte {at}, its tensors at {end}")
                at += copied
    draft.rename(target)


def _together(tensors: Sequence[TensorSpec]) -> list[TensorSpec]:
    """The same tensors one right behind the other, from 0."""
    moved, end = [], 0
    for spec in tensors:
        moved.append(msgspec.structs.replace(spec, offset=end))
        end += spec.nbytes
    return moved


def _runs(tensors: Sequence[TensorSpec]) -> list[tuple[int, int]]:
    """Byte ranges of the image, in the order of the tensors; adjacent ones joined."""
    runs: list[tuple[int, int]] = []
    for spec in tensors:
        if runs and runs[-1][1] == spec.offset:
            runs[-1] = (runs[-1][0], spec.offset + spec.nbytes)
        else:
            runs.append((spec.offset, spec.offset + spec.nbytes))
    return runs


def _sweep(store: Path) -> None:
    """Remove the folders of processes that are gone."""
    for left in sorted(store.glob(f"{PREFIX}*")):
        pid = left.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(left, ignore_errors=True)

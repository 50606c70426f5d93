"""`SealedState`: directory of files under a seal, whole or known to be damaged.

Owns the seal, `meta.json`: the size and xxh3-128 digest of every file beside it, and a digest of itself. It
is written last, by rename, so a directory without one is unfinished. `checkpoint_store` and `host_copy` own
the places and the number of such directories.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import xxhash

from gleaner.actors.cluster.saved_state import Damaged, FileInfo, Note, SealedState, StateDirFull

SEAL = "meta.json"
READ_BYTES = 4 * 2**20

Content = bytes | bytearray | memoryview | Callable[[Path], None]
"""The content of a file: its bytes, or a function that writes it at a given path."""
Contents = Mapping[str, Content] | Callable[[Path], None]
"""The contents of a directory: its files by name, or a function that writes them into a given directory."""


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of `meta.json`."""

    format: int = 1
    step: int
    files: dict[str, FileInfo]
    meta: dict[str, Note]
    digest: str = ""

    def expected_digest(self) -> str:
        bare = msgspec.structs.replace(self, digest="")
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode(bare, order="deterministic"))


def write(
    directory: Path,
    step: int,
    files: Contents,
    meta: Mapping[str, Note],
    *,
    durable: bool,
    expected: Mapping[str, FileInfo] | None = None,
) -> SealedState:
    """Write the files and their seal. `durable`: do not return before they are on the disk.

    `expected`: the required result, by name. Raises `StateDirFull`, or `Damaged` if the result differs; then,
    as after any other failure, there is no seal and the directory is the caller's to remove.
    """
    expected = expected or {}
    given = {} if callable(files) else files
    known = sum(max(_size(content), _expected_size(expected, name)) for name, content in given.items())
    if (free := free_bytes(directory)) < known:
        raise StateDirFull(directory, known, free)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in given.items():
            _write_file(directory, name, content)
        if callable(files):
            files(directory)
        infos = {path.name: _finish(path, durable) for path in sorted(directory.iterdir())}
        for name in expected:
            if infos[name] != expected[name]:
                raise Damaged(f"{directory / name} is not what it was to be: its source changed meanwhile")
        seal = Seal(step=step, files=infos, meta=dict(meta))
        seal = msgspec.structs.replace(seal, digest=seal.expected_digest())
        draft = f"{SEAL}.unfinished"
        _write_file(directory, draft, msgspec.json.format(msgspec.json.encode(seal)))
        _finish(directory / draft, durable)
        (directory / draft).rename(directory / SEAL)
        if durable:
            sync_directory(directory)
    except Exception as error:
        if _no_space(error):
            raise StateDirFull(directory, known, free_bytes(directory)) from error
        raise
    return SealedState(step, directory, seal.meta, infos)


def read_seal(directory: Path) -> Seal:
    """The seal alone, without reading the files. Raises `Damaged`."""
    try:
        seal = msgspec.json.decode((directory / SEAL).read_bytes(), type=Seal)
    except FileNotFoundError:
        raise Damaged(f"{directory} has no {SEAL}: it was never finished") from None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"{directory / SEAL} cannot be read: {error}") from error
    if seal.format != 1:
        raise Damaged(f"{directory / SEAL} has format {seal.format}, this version reads 1")
    if seal.digest != seal.expected_digest():
        raise Damaged(f"{directory / SEAL} does not match its own digest")
    return seal


def verify(directory: Path) -> SealedState:
    """Read everything and compare. Raises `Damaged`."""
    seal = read_seal(directory)
    for name, info in seal.files.items():
        try:
            found = _info(directory / name)
        except OSError as error:
            raise Damaged(f"{directory / name} cannot be read: {error}") from error
        require_sealed(directory / name, found, info)
    return SealedState(seal.step, directory, seal.meta, seal.files)


def require_sealed(path: Path, found: FileInfo | None, info: FileInfo) -> None:
    """Compare a file with what was sealed; None: it is missing. Raises `Damaged`."""
    if found != info:
        what = "is missing" if found is None else f"has {found.bytes} bytes of digest {found.digest}"
        raise Damaged(f"{path} {what}; {info.bytes} bytes of digest {info.digest} were sealed")


def copier(source: Path) -> Callable[[Path], None]:
    """The content of a copied file."""
    return lambda target: _copy(source, target)


def unseal(directory: Path) -> None:
    """The files may change from now on."""
    (directory / SEAL).unlink(missing_ok=True)


def remove(directory: Path) -> None:
    """Delete a directory so that no half of it can ever be taken for a whole one."""
    with contextlib.suppress(FileNotFoundError):
        unseal(directory)
        shutil.rmtree(directory)


def free_bytes(directory: Path) -> int:
    """Free bytes at the place of `directory`, which need not exist yet."""
    while not directory.exists():
        directory = directory.parent
    stat = os.statvfs(directory)
    return stat.f_bavail * stat.f_frsize


def sync_directory(directory: Path) -> None:
    """Make renames in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_file(directory: Path, name: str, content: Content) -> None:
    if not name or "/" in name or name in (".", "..", SEAL):
        raise ValueError(f"{name!r} cannot be the name of a file of the state")
    path = directory / name
    if not callable(content):
        path.write_bytes(content)
        return
    content(path)
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "the writer of this file did not write it", str(path))


def _finish(path: Path, durable: bool) -> FileInfo:
    info = _info(path)
    if info is None:
        raise FileNotFoundError(errno.ENOENT, "it went away before it was sealed", str(path))
    if durable:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    return info


def _info(path: Path) -> FileInfo | None:
    digest = xxhash.xxh3_128()
    try:
        with path.open("rb") as file:
            while part := file.read(READ_BYTES):
                digest.update(part)
            return FileInfo(file.tell(), digest.hexdigest())
    except FileNotFoundError:
        return None


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)


def _expected_size(expected: Mapping[str, FileInfo], name: str) -> int:
    return expected[name].bytes if name in expected else 0


def _size(content: Content) -> int:
    return 0 if callable(content) else memoryview(content).nbytes


def _no_space(error: Exception) -> bool:
    # Libraries that write files themselves (safetensors) raise errors of their own with the system's text.
    known = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return known or os.strerror(errno.ENOSPC) in str(error)

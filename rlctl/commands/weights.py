"""`rlctl weights export|import|pages|clean`: weights on disk and in shared memory.

Exports and imports versions in the layouts of slime and Stitch, shows the versions that the instances of this
host serve, and frees the shared memory of dead runs.
"""

import argparse
import mmap
import tempfile
from pathlib import Path
from typing import cast

import msgspec

from gleaner.rlctl.commands.terminal import Subparsers, add_command, add_json, console, print_json
from gleaner.rlctl.errors import OK, failed, nothing, usage
from gleaner.rlctl.preflight import size

_DESCRIPTION = """\
Exchange weights with engines and trainers of slime and Stitch over a shared file system.

Both publish versions as folders `weight_v000007`: a whole Hugging Face checkpoint, or the changes since the
previous version, each changed tensor with a digest of its new contents. `export` writes a checkpoint as such
a version, whole, or against the checkpoint of the previous version. `import` follows a chain of such folders
from its base and writes the resulting checkpoint; every changed tensor is checked against its digest, and the
base is only read. A job exports by itself: set weights.disk to a folder."""

_EXPORT = """\
  rlctl weights export ckpt/step-7 shared --version 7                          a whole version
  rlctl weights export ckpt/step-8 shared --version 8 --base ckpt/step-7       what changed since version 7
  rlctl weights export ckpt/step-8 shared --version 8 --base ckpt/step-7 --stitch RUN"""

_IMPORT = """\
  rlctl weights import shared merged --base model       the newest version, from the checkpoint it began with
  rlctl weights import shared merged --version 8        from the newest whole version at or before 8
  rlctl run quickstart --set model.path=merged          continue with it"""


_PAGES_DESCRIPTION = """\
Show which weights the instances of this host serve, which they prepare, and which failed to load and why. The
command reads their control pages in shared memory and asks no process, so it works after a crash, too."""

_PAGES = """\
  rlctl weights pages                                      every instance on this host
  rlctl weights pages /dev/shm/gleaner-RUN-spot-1/weights  those of one host of a run
  rlctl weights pages --json                               for machines"""


_CLEAN_DESCRIPTION = """\
Free the orphaned shared memory of dead runs on this host: runs whose processes were all killed at once, so
that none could free it. A folder in which anything is locked, open or mapped by a process is left alone, and
so is one of a node agent that runs its job, and one that changed within the last minute. Host copies of a
trainer's state stay, because `rlctl resume` continues from them, unless --all is given: then it continues
from the newest checkpoint. Node agents free the weights of dead runs by themselves when they start."""

_CLEAN = """\
  rlctl weights clean --dry-run   what would be freed, and why the rest is kept
  rlctl weights clean             free it
  rlctl weights clean --all       and the host copies of runs that will not be resumed"""


class Exported(msgspec.Struct):
    """Result of an export. `tensors`: tensors of the version; `changed`: tensors in its files."""

    path: str
    version: int
    whole: bool
    tensors: int
    changed: int
    bytes: int
    image_bytes: int


class Imported(msgspec.Struct):
    """Result of an import. `deltas`: number of deltas applied to `base`; `root`: root of our manifest of the
    result."""

    path: str
    version: int
    base: str
    deltas: int
    tensors: int
    image_bytes: int
    root: str


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "weights",
        export,
        description=f"{_DESCRIPTION}\n\n{_PAGES_DESCRIPTION}\n\n{_CLEAN_DESCRIPTION}",
        examples=f"{_EXPORT}\n{_IMPORT}\n{_PAGES}\n{_CLEAN}",
    )
    kinds = cast(
        Subparsers, parser.add_subparsers(dest="what", required=True, metavar="export|import|pages|clean")
    )
    out = add_command(
        kinds, "export", export, help="write a version", description=_DESCRIPTION, examples=_EXPORT
    )
    out.add_argument(
        "checkpoint", type=Path, metavar="CHECKPOINT", help="a Hugging Face checkpoint directory"
    )
    out.add_argument("folder", type=Path, metavar="FOLDER", help="folder with the versions of one run")
    out.add_argument("--version", type=int, required=True, metavar="N", help="number of the new version")
    out.add_argument("--base", type=Path, metavar="DIR", help="checkpoint of version N - 1 (default: whole)")
    out.add_argument("--encoding", choices=("xor", "overwrite"), default="xor", help="default: xor")
    out.add_argument(
        "--checksum", choices=("xxh3-128", "blake3", "adler32"), default="xxh3-128", help="default: xxh3-128"
    )
    out.add_argument("--stitch", default="", metavar="RUN", help="use the layout of Stitch, for this run id")
    add_json(out)
    into = add_command(
        kinds, "import", import_, help="read a version", description=_DESCRIPTION, examples=_IMPORT
    )
    into.add_argument("folder", type=Path, metavar="FOLDER", help="folder with the published versions")
    into.add_argument("checkpoint", type=Path, metavar="DIR", help="checkpoint to write; it must not exist")
    into.add_argument("--base", type=Path, metavar="DIR", help="checkpoint that the chain begins with")
    into.add_argument(
        "--base-version", type=int, default=0, metavar="N", help="version of that checkpoint (default: 0)"
    )
    into.add_argument("--version", type=int, metavar="N", help="version to read (default: the newest)")
    add_json(into)
    look = add_command(
        kinds,
        "pages",
        pages,
        help="show which weights the instances of this host serve",
        description=_PAGES_DESCRIPTION,
        examples=_PAGES,
    )
    look.add_argument(
        "path", type=Path, nargs="?", metavar="PATH", help="a page, or their folder (default: all)"
    )
    add_json(look)
    free = add_command(
        kinds,
        "clean",
        clean,
        help="free the shared memory of dead runs",
        description=_CLEAN_DESCRIPTION,
        examples=_CLEAN,
    )
    free.add_argument("--dry-run", action="store_true", help="only show; free nothing")
    free.add_argument("--all", action="store_true", help="free the host copies of the trainer's state, too")
    add_json(free)


def export(args: argparse.Namespace) -> int:
    """Write a version. Exit code 1 where the checkpoints are invalid."""
    from gleaner.actors.weights.disk.codec import DiskDeltaError
    from gleaner.actors.weights.disk.layout import folder_of
    from gleaner.actors.weights.disk.reader import Chain, index_of, read_image, versions_folder
    from gleaner.actors.weights.disk.writer import DiskWriter

    if args.version < 0:
        raise usage(f"--version {args.version}: versions count from 0")
    args.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".gleaner-", dir=args.folder) as scratch:
        try:
            new = _Scratch(Path(scratch))
            tensors = read_image(Chain(args.checkpoint, ()), new.make)
            writer = DiskWriter(
                args.folder,
                encoding=args.encoding,
                checksum=args.checksum,
                like=args.checkpoint,
                stitch_run=args.stitch,
            )
            if args.base is None:
                nbytes = writer.write_whole(args.version, new.view, tensors)
            else:
                old = _Scratch(Path(scratch))
                if read_image(Chain(args.base, ()), old.make) != tensors:
                    raise failed(
                        f"{args.base} and {args.checkpoint} do not have the same tensors in the same order: "
                        "export the version whole, without --base"
                    )
                nbytes = writer.write_delta(args.version, old.view, new.view, tensors)
            path = versions_folder(args.folder) / folder_of(args.version)
            changed = len(index_of(path).files)
        except (DiskDeltaError, OSError) as problem:
            raise failed(str(problem)) from problem
    result = Exported(
        str(path), args.version, args.base is None, len(tensors), changed, nbytes, len(new.view)
    )
    if args.json:
        print_json(result)
    else:
        what = "whole" if result.whole else f"{result.changed} of {result.tensors} tensors changed"
        console().print(
            f"{path}: {what}, {size(result.bytes)} for weights of {size(result.image_bytes)}", markup=False
        )
    return OK


def import_(args: argparse.Namespace) -> int:
    """Read a version. Exit code 1 where the chain does not lead to it complete and verified."""
    from gleaner.actors.weights.disk.codec import DiskDeltaError
    from gleaner.actors.weights.disk.reader import chain_to, newest, read_image
    from gleaner.actors.weights.disk.writer import write_checkpoint
    from gleaner.actors.weights.image.manifest import Manifest

    if args.checkpoint.exists():
        raise usage(f"{args.checkpoint} exists: choose another directory, or remove it")
    args.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".gleaner-", dir=args.checkpoint.parent) as scratch:
        try:
            version = args.version if args.version is not None else newest(args.folder)
            if version is None:
                raise failed(f"{args.folder} has no version: none is published, or it is another folder")
            chain = chain_to(args.folder, version, args.base, args.base_version)
            image = _Scratch(Path(scratch))
            tensors = read_image(chain, image.make)
            manifest = Manifest.build(version, image.view, tensors, chunk_bytes=1 << 20)
            write_checkpoint(args.checkpoint, image.view, tensors, like=chain.whole)
        except (DiskDeltaError, OSError) as problem:
            raise failed(str(problem)) from problem
    result = Imported(
        str(args.checkpoint),
        version,
        str(chain.whole),
        len(chain.deltas),
        len(tensors),
        manifest.image_bytes,
        manifest.root.hex(),
    )
    if args.json:
        print_json(result)
    else:
        console().print(
            f"{result.path}: version {version}, {result.deltas} differences after {result.base}, every "
            f"changed "
            f"tensor equal to its publisher's; {result.tensors} tensors, {size(result.image_bytes)}",
            markup=False,
        )
    return OK


def pages(args: argparse.Namespace) -> int:
    """Show control pages. Exit code 1 where one cannot be read, 3 where there is none."""
    from gleaner.rlctl.weight_pages import find, read, table

    found = find(args.path)
    if not found:
        raise nothing(f"no control page in {args.path or 'shared memory'}: no instance began there")
    known, problems = read(found)
    if args.json:
        print_json(known)
    elif known.pages:
        console().print(table(known.pages, console().width))
    if problems:
        raise failed(*problems)
    return OK


def clean(args: argparse.Namespace) -> int:
    """Free the memory of dead runs. Exit code 0, also where there was none."""
    from gleaner.actors.cluster.job import SHARED_MEMORY
    from gleaner.nodeagent.job_memory import QUIET_S
    from gleaner.rlctl import orphaned_memory

    result = orphaned_memory.clean(SHARED_MEMORY, QUIET_S, whole=args.all, dry=args.dry_run)
    if args.json:
        print_json(result)
        return OK
    out = console()
    if result.folders:
        out.print(orphaned_memory.table(result.folders, out.width))
    would = "would be freed" if result.dry else "freed"
    out.print(f"{size(result.freed_bytes)} {would} in {len(result.folders)} folders of runs", markup=False)
    return OK


class _Scratch:
    """An image in a file that is deleted at the end: models may be larger than memory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.view = memoryview(b"")

    def make(self, nbytes: int) -> memoryview:
        """Its zeroed memory."""
        with tempfile.TemporaryFile(dir=self._directory) as file:
            file.truncate(nbytes)
            self.view = memoryview(mmap.mmap(file.fileno(), nbytes)) if nbytes else memoryview(b"")
        return self.view

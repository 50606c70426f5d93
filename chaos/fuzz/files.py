"""Fuzz targets for files that another process may have written.

Each target owns its files in the scratch directory that it is given.
"""

import asyncio
import csv
import io
from collections.abc import Callable
from pathlib import Path

import msgspec

from gleaner.actors.cluster.saved_state import Damaged
from gleaner.actors.cluster.sealed_folder import SEAL, Seal, read_seal
from gleaner.actors.protocol.batches import BatchSubmitted
from gleaner.actors.protocol.cluster import JobSpec
from gleaner.actors.rollout.state.events import FrameLogged, GroupsTaken, Scored
from gleaner.actors.training.history import AnyRecord, HistoryError, read_history
from gleaner.actors.weights.control.page import BadPage, Page, decode, encode
from gleaner.chaos.examples import example
from gleaner.chaos.fuzz.target import Target, WrongAccept, same
from gleaner.configs import load, trace
from gleaner.nodeagent.exit_codes import CannotRun
from gleaner.nodeagent.job_file import read_job
from gleaner.supervisor.errors import JournalError
from gleaner.supervisor.journal.file import read_streams
from gleaner.supervisor.journal.sqlite import SqliteJournal
from gleaner.transport.keys import BadKeys, NodeKeys

PUBLIC = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
SECRET = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs"
"""The key pair of the CURVE specification (rfc.zeromq.org/spec/26); not in use."""
STREAM = "rollout/manager"


def targets(scratch: Path) -> list[Target]:
    """All of them; their files are in `scratch`."""
    return [
        Target("keys", _keys(scratch), (BadKeys,), lambda: [_PAIR]),
        Target("journal", _journal(scratch), (JournalError,), lambda: [_made_journal(scratch)]),
        Target("trace", _trace, (trace.TraceError, UnicodeDecodeError), _traces),
        Target("config", _config(scratch), (load.ConfigError,), _configs),
        Target("history", _history(scratch), (HistoryError,), _histories),
        Target("seal", _seal(scratch), (Damaged,), _seals),
        Target("job", _job(scratch), (CannotRun,), _jobs),
        Target("control_page", _control_page, (BadPage,), _control_pages),
    ]


_PAIR = f"{PUBLIC}\n\x00{SECRET}\n".encode()


def _keys(scratch: Path) -> Callable[[bytes], None]:
    """The public key's file, a NUL, the secret one's."""
    directory = scratch / "keys"
    (directory / "trusted").mkdir(parents=True)
    public, secret = directory / "node.public", directory / "node.secret"
    secret.touch(mode=0o600)

    def take(data: bytes) -> None:
        halves = data.partition(b"\x00")
        public.write_bytes(halves[0])
        secret.write_bytes(halves[2])
        keys = NodeKeys.load(directory)
        if (keys.public, keys.secret) != (PUBLIC, SECRET):
            raise WrongAccept(f"{keys} is a forged key pair")

    return take


def _journal(scratch: Path) -> Callable[[bytes], None]:
    """A whole SQLite file."""
    path = scratch / "fuzzed.db"
    expected = [example(FrameLogged), example(Scored), example(GroupsTaken)]

    def take(data: bytes) -> None:
        path.write_bytes(data)
        found = read_streams(path, [STREAM])
        if STREAM in found:
            same(list(found[STREAM].messages), expected)

    return take


def _made_journal(scratch: Path) -> bytes:
    path = scratch / "whole.db"

    async def make() -> None:
        store = SqliteJournal(path)
        store.open(STREAM, 1)
        await store.append(STREAM, 1, [example(BatchSubmitted)])
        await store.snapshot(STREAM, 1, example(FrameLogged))
        await store.append(STREAM, 1, [example(Scored), example(GroupsTaken)])
        await store.close()

    asyncio.run(make())
    whole = path.read_bytes()
    path.unlink()
    return whole


def _trace(data: bytes) -> None:
    found = trace.parse(data.decode("utf-8-sig"), "fuzzed")
    text = io.StringIO()
    rows = [(repr(it.t_s), it.event.value, it.instance) for it in found.events]
    csv.writer(text).writerows([trace.HEADER, *rows])
    same(found, trace.parse(text.getvalue(), "fuzzed"))


def _traces() -> list[bytes]:
    head = ",".join(trace.HEADER)
    return [f"{head}\n0,add,spot-1\n1.5,notice,spot-1\n2e1,remove,spot-1\n20,add,spot-1\n".encode()]


def _config(scratch: Path) -> Callable[[bytes], None]:
    path, again = scratch / "fuzzed.toml", scratch / "again.toml"

    def take(data: bytes) -> None:
        path.write_bytes(data)
        config = load.load(path)
        text = load.dump(config)
        again.write_text(text, encoding="utf-8")
        same(text, load.dump(load.load(again)))

    return take


def _configs() -> list[bytes]:
    return [
        b"[job]\nname = 'a'\nseed = 7\n[rollout]\nprompts = 8  # one\n[fleet]\ntrace = 'a.csv'\n",
        b"[training]\nbetas = [0.9, 0.95]\n[task.params]\na = 1\n[seeding]\nmemory = false\n",
    ]


def _history(scratch: Path) -> Callable[[bytes], None]:
    path = scratch / "history.jsonl"

    def take(data: bytes) -> None:
        path.write_bytes(data)
        records = read_history(path)
        path.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
        same(records, read_history(path))

    return take


def _histories() -> list[bytes]:
    records = [example(cls) for cls in AnyRecord.__args__]
    return [b"".join(msgspec.json.encode(record) + b"\n" for record in records)]


def _control_page(data: bytes) -> None:
    """A checksum protects the bytes: a value that is accepted is a value that was written."""
    same(encode(decode(data), int.from_bytes(data[8:16], "little")), data[:512])


def _control_pages() -> list[bytes]:
    page = Page().begun(3).preparing(7, b"r" * 32)
    failed = page.loading().failed("the image lacks lm_head.weight")
    return [encode(it, 2 * n) for n, it in enumerate((page, page.loading().loaded(), failed), 1)]


def _seal(scratch: Path) -> Callable[[bytes], None]:
    directory = scratch / "sealed"
    directory.mkdir()

    def take(data: bytes) -> None:
        (directory / SEAL).write_bytes(data)
        seal = read_seal(directory)
        (directory / SEAL).write_bytes(msgspec.json.encode(seal))
        same(seal, read_seal(directory))

    return take


def _seals() -> list[bytes]:
    bare = msgspec.structs.replace(example(Seal), format=1)
    return [msgspec.json.encode(msgspec.structs.replace(bare, digest=bare.expected_digest()))]


def _job(scratch: Path) -> Callable[[bytes], None]:
    path = scratch / "job.json"

    def take(data: bytes) -> None:
        path.write_bytes(data)
        job = read_job(path)
        path.write_bytes(msgspec.json.encode(job))
        same(job, read_job(path))

    return take


def _jobs() -> list[bytes]:
    return [msgspec.json.encode(example(JobSpec))]

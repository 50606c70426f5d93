"""Sandbox growth: after a hundred thousand programs it holds as much as at the start."""

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import pytest

from gleaner.actors.reward.sandbox.detection import NoSandbox, detect
from gleaner.actors.reward.sandbox.host_end import HostSandbox
from gleaner.actors.reward.sandbox.port import Isolation, Limits, Status, Work

pytestmark = [pytest.mark.long, pytest.mark.timeout(4 * 3600)]

PROGRAMS = int(os.environ.get("GLEANER_SANDBOX_PROGRAMS", "100000"))
HOSTILE = 10
"""One program in so many is harmful."""
HARM = ("endless_loop", "sleeps", "memory", "forks", "daemon", "daemon_and_exit", "leaves_files", "flood")
SMALL = Limits(cpu_s=0.05, wall_s=0.4, memory_bytes=128 * 2**20, tmp_bytes=2**20, output_bytes=2**16)
FIRST = PROGRAMS // 50
"""Programs before the first measurement, so that caches are full."""


@dataclass(frozen=True)
class Held:
    """Resources of this process, its sandbox and its user. Bytes are resident."""

    processes: int
    descriptors: int
    files: int
    own_bytes: int
    sandbox_bytes: int
    control_groups: int

    @staticmethod
    def now() -> "Held":
        own = psutil.Process()
        children = own.children(recursive=True)
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        own_groups = [f"/sys/fs/cgroup/{one.split(':', 2)[1]}{one.split(':', 2)[2]}" for one in lines]
        return Held(
            processes=len(children),
            descriptors=own.num_fds(),
            files=sum(len(files) for _, _, files in os.walk(tempfile.gettempdir())),
            own_bytes=own.memory_info().rss,
            sandbox_bytes=sum(child.memory_info().rss for child in children),
            control_groups=sum(len(found) for group in own_groups for _, found, _ in os.walk(group)),
        )


@pytest.fixture(params=[mode.value for mode in Isolation])
def sandbox(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostSandbox]:
    folder = tempfile.mkdtemp(
        prefix="gleaner-growth-"
    )  # other sandboxes of the machine have their own folders beside it
    os.chmod(folder, 0o711)
    monkeypatch.setattr(tempfile, "tempdir", folder)
    try:
        host = detect(request.param)
    except NoSandbox as problem:
        pytest.skip(str(problem))
    made = HostSandbox(host, ["escapes"], path=[str(Path(__file__).parent)])
    yield made
    made.close()
    shutil.rmtree(folder)


def test_nothing_grows_over_a_hundred_thousand_programs(sandbox: HostSandbox) -> None:
    chosen = random.Random(7)
    before = Held.now()
    counts: dict[Status, int] = {}
    for number in range(PROGRAMS):
        hostile = number % HOSTILE == 0
        name, limits = (chosen.choice(HARM), SMALL) if hostile else ("finds_files", Limits())
        outcome = sandbox.run(Work(function=f"escapes:{name}", payload=b"", limits=limits))
        counts[outcome.status] = counts.get(outcome.status, 0) + 1
        if not hostile:
            assert (outcome.status, outcome.result) == (Status.OK, b"[]"), (number, outcome)
        if number == FIRST:
            before = Held.now()
    after = Held.now()
    sys.stderr.write(f"{PROGRAMS} programs: {counts}\nbefore {before}\nafter  {after}\n")
    assert not counts.get(Status.SANDBOX_FAILED)
    assert after.control_groups == before.control_groups
    for name, value in asdict(before).items():
        assert getattr(after, name) <= 1.05 * value, name

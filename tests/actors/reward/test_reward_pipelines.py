"""Pipelines on real workers: a program is compiled on one host and run on another."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import pytest

from gleaner.actors.names import REWARD
from gleaner.actors.protocol.reward import RewardState, RewardStatus, ScoreText, Verdict
from gleaner.actors.reward.blobs import BlobFolder, NoBlob
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.host import RewardHost
from gleaner.actors.reward.proxy import RewardProxy, pool_limits, settings_of_task
from gleaner.actors.reward.scoring import WorkerSpec
from gleaner.actors.reward.settings import RewardSettings
from gleaner.actors.reward.stage_pools import StagePools
from gleaner.actors.reward.stages import Pipelines
from gleaner.actors.reward.text_tasks import SCORER
from gleaner.actors.reward.worker_process import WorkerProcess
from gleaner.configs.load import from_tree
from gleaner.supervisor.testing import TestSystem

if shutil.which("gcc") is None:
    pytest.skip("gcc is not installed here (apt install gcc libc6-dev)", allow_module_level=True)

CONFIG = from_tree(
    {
        "task": [
            {
                "name": "doubles",
                "data": "none.jsonl",
                "verifier": "code",
                "params": {"language": "c", "compile_s": 4.0, "deadline_s": 1.0},
            }
        ],
        "reward": {
            "deadline_s": 8.0,
            "journal_above_s": 0.0,
            "stages": {"separate": True, "run": {"workers": 0}, "compile": {"host_workers": 0}},
        },
    },
    "test",
)
DOUBLES = Entry(question="?", tests=tuple({"input": f"{n}\n", "output": f"{2 * n}"} for n in range(2)))
HEAD = "#include <stdio.h>\n"
MAIN = 'int main(void) { int n; scanf("%d", &n); printf("%d\\n", 2 * n + ADD); return 0; }'
LARGE = "static const char zeros[200000] = {1}; const char *volatile kept = zeros;\n"
"""What makes a program too large to travel with its item."""


@dataclass
class Hosts:
    """The proxy's host compiles, the other one runs. `files`: where each has its blobs."""

    near: TestSystem
    far: TestSystem
    files: Path

    def start_proxy(self) -> None:
        blobs = partial(self._blobs, "near")
        self.near.spawn(
            REWARD, lambda: RewardProxy(SETTINGS, "", WorkerProcess.start, SPEC, make_blobs=blobs)
        )

    def start_host(self) -> None:
        workers = Pipelines(CONFIG.task, CONFIG.reward).host_workers(1)
        pools = StagePools(
            workers,
            SPEC,
            WorkerProcess.start,
            pool_limits(CONFIG.reward),
            staged=True,
            make_blobs=partial(self._blobs, "far"),
        )
        self.far.spawn("far/reward", lambda: RewardHost(pools, 60.0))

    def _blobs(self, name: str) -> BlobFolder:
        (self.files / name).mkdir(exist_ok=True)
        return BlobFolder(self.files / name)

    def blobs(self, name: str) -> set[str]:
        """The blobs of a host."""
        return {path.name for path in (self.files / name).iterdir()}

    async def score(self, name: str, source: str) -> Verdict:
        ask = ScoreText(
            request=name,
            task="doubles",
            entry=msgspec.json.encode(DOUBLES),
            response=f"```c\n{source}\n```",
            batch="step-1",
        )
        return await self.near.ask(REWARD, ask, Verdict, deadline_s=60.0)

    async def state(self) -> RewardState:
        return await self.near.ask(REWARD, RewardStatus(), RewardState, deadline_s=60.0)


SETTINGS = RewardSettings.of(CONFIG)
SPEC = WorkerSpec(scorer=SCORER, config={"settings": settings_of_task(SETTINGS)})


@pytest.fixture
async def hosts(tmp_path: Path) -> AsyncIterator[Hosts]:
    async with TestSystem(tmp_path) as near, TestSystem(tmp_path, node="far", join=near) as far:
        made = Hosts(near, far, tmp_path)
        made.start_proxy()
        made.start_host()
        yield made


def source(add: int = 0, large: bool = False) -> str:
    return HEAD + (LARGE if large else "") + MAIN.replace("ADD", str(add))


async def test_program_is_compiled_on_one_host_and_run_on_another(hosts: Hosts) -> None:
    """A large one is fetched by the host that runs it; what does not compile is not run."""
    asked = [source(), source(large=True), source(add=1, large=True), "int main(void) { return }"]
    verdicts = await asyncio.gather(*(hosts.score(f"r{n}", one) for n, one in enumerate(asked)))
    assert [verdict.status for verdict in verdicts] == ["ok", "ok", "ok", "compile_failed"]
    assert [verdict.score for verdict in verdicts] == [1.0, 1.0, 0.0, 0.0]
    assert len(hosts.blobs("near")) == 2
    assert hosts.blobs("far") == hosts.blobs("near")
    state = await hosts.state()
    assert {stage.name: (stage.workers, stage.most) for stage in state.stages} == {
        "compile": (1, 1),
        "run": (1, 1),
    }
    (job,) = state.jobs
    assert set(job.worker_s) == {"compile", "run"}


async def test_program_whose_blob_is_gone_is_compiled_again(hosts: Hosts) -> None:
    verdict = await hosts.score("first", source(large=True))
    assert verdict.score == 1.0
    for name in ("near", "far"):
        for blob in hosts.blobs(name):
            (hosts.files / name / blob).unlink()
    proxy = hosts.near.system.cell(REWARD)
    assert proxy is not None
    hosts.near.kill(REWARD)  # its journal says that the program was compiled, and where
    hosts.start_proxy()
    hosts.far.kill("far/reward")
    hosts.start_host()
    assert (await hosts.score("first", source(large=True))).score == 1.0


async def test_verdict_survives_the_death_of_proxy_and_host(hosts: Hosts) -> None:
    """At any instant of an item's stages: each request has its verdict, and the right one."""
    asked = {f"r{n}": source(add=n % 2, large=n % 3 == 0) for n in range(12)}

    async def scored(name: str) -> Verdict:
        while True:
            try:
                return await hosts.score(name, asked[name])
            except Exception:  # noqa: BLE001 (the manager asks again, whatever happened)
                await asyncio.sleep(0.05)

    under_way = [asyncio.create_task(scored(name)) for name in asked]
    for _ in range(3):
        await asyncio.sleep(0.7)
        hosts.far.kill("far/reward")
        hosts.start_host()
        await asyncio.sleep(0.7)
        hosts.near.kill(REWARD)
        hosts.start_proxy()
    async with asyncio.timeout(120.0):
        verdicts = await asyncio.gather(*under_way)
    assert [verdict.score for verdict in verdicts] == [1.0 - n % 2 for n in range(12)]


def test_blobs_are_bounded_and_damage_is_detected(tmp_path: Path) -> None:
    blobs = BlobFolder(tmp_path, most_bytes=250)
    names = [blobs.put(bytes([number]) * 100) for number in range(4)]
    assert [blobs.has(name) for name in names] == [False, False, True, True]
    assert blobs.read(names[3]) == b"\x03" * 100
    (tmp_path / names[3]).write_bytes(b"damaged")
    for name in (names[3], names[0], "../../etc/passwd", "0" * 32):
        with pytest.raises(NoBlob):
            blobs.read(name)
    assert not blobs.has("../x")
    own = BlobFolder()
    own.put(b"x")
    own.close()
    assert not own.directory.exists()

"""Pipelines on real workers: a program is compiled on one host and run on another."""

import asyncio
import random
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
from pipeline_hosts import HOST, Hosts, settings, source

from gleaner.actors.names import PLANNER, REWARD
from gleaner.actors.protocol.reward import Verdict
from gleaner.actors.reward.blobs import BlobFolder, NoBlob
from gleaner.actors.reward.journal import RewardSnapshot, VerdictGiven
from gleaner.supervisor.journal.file import contents_of, view_file
from gleaner.supervisor.testing import TestSystem

sys.path.insert(0, str(Path(__file__).parent / "verifiers"))

from judge_services import grades
from reward_services import Service, service

if shutil.which("gcc") is None:
    pytest.skip("gcc is not installed here (apt install gcc libc6-dev)", allow_module_level=True)

CONFIG = settings({"run": {"workers": 0}, "compile": {"host_workers": 0}})


@pytest.fixture
async def hosts(tmp_path: Path) -> AsyncIterator[Hosts]:
    async with TestSystem(tmp_path) as near, TestSystem(tmp_path, node="far", join=near) as far:
        made = Hosts(near, far, tmp_path, CONFIG)
        made.start_proxy()
        made.start_host()
        yield made


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


async def scored(hosts: Hosts, name: str, program: str) -> Verdict:
    """As the manager has it: asked for again, whatever happened."""
    while True:
        try:
            verdict = await hosts.score(name, program)
        except Exception:  # noqa: BLE001 (any failure of the tier)
            await asyncio.sleep(0.05)
            continue
        if verdict.score is not None:
            return verdict


async def test_verdict_survives_the_death_of_proxy_and_host(hosts: Hosts) -> None:
    """At any instant of an item's stages: each request has its verdict, and the right one."""
    asked = {f"r{n}": source(add=n % 2, large=n % 3 == 0) for n in range(12)}
    under_way = [asyncio.create_task(scored(hosts, name, one)) for name, one in asked.items()]
    for _ in range(3):
        await asyncio.sleep(0.7)
        hosts.far.kill(HOST)
        hosts.start_host()
        await asyncio.sleep(0.7)
        hosts.near.kill(REWARD)
        hosts.start_proxy()
    async with asyncio.timeout(120.0):
        verdicts = await asyncio.gather(*under_way)
    assert [verdict.score for verdict in verdicts] == [1.0 - n % 2 for n in range(12)]


@pytest.fixture
def judge() -> Iterator[Service]:
    with service() as found:
        found.answers[:] = [grades(10)]
        yield found


def journaled(journal: Path) -> list[tuple[str, float]]:
    """The verdicts in a proxy's journal, read when its process has ended."""
    with view_file(journal) as found:
        messages = contents_of(found, [REWARD])[REWARD].messages
    events = [given for one in messages if isinstance(one, RewardSnapshot) for given in one.verdicts]
    events += [one for one in messages if isinstance(one, VerdictGiven)]
    return [(given.request, given.score) for given in events]


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", range(3))
async def test_each_request_has_one_verdict_when_all_parts_of_three_stages_die(
    tmp_path: Path, judge: Service, seed: int
) -> None:
    """Proxy, host, planner and workers are killed at 20 instants. What passes its tests is judged."""
    rng = random.Random(seed)
    config = settings({}, judge.url.replace("/score", "/v1"), "distrs")
    asked = {f"r{n}": (source(add=n % 2, large=n % 3 == 0), 1.0 - n % 2) for n in range(60)}
    async with TestSystem(tmp_path) as near, TestSystem(tmp_path, node="far", join=near) as far:
        hosts = Hosts(near, far, tmp_path, config)
        hosts.start_planner()
        hosts.start_proxy()
        hosts.start_host()
        under_way = [asyncio.create_task(scored(hosts, name, one)) for name, (one, _) in asked.items()]
        for _ in range(20):
            await asyncio.sleep(rng.uniform(0.1, 1.0))
            part = rng.choice((REWARD, HOST, PLANNER, "worker"))
            if part == "worker":
                workers = [
                    one for one in psutil.Process().children() if "reward.worker" in str(one.cmdline())
                ]
                if workers:
                    rng.choice(workers).kill()
            elif part == HOST:
                far.kill(HOST)
                hosts.start_host()
            else:
                near.kill(part)
                (hosts.start_proxy if part == REWARD else hosts.start_planner)()
        async with asyncio.timeout(300.0):
            verdicts = await asyncio.gather(*under_way)
        wanted = {name: score for name, (_, score) in asked.items()}
        assert {verdict.request: verdict.score for verdict in verdicts} == wanted
        near.kill(REWARD)
        hosts.start_proxy()
        async with asyncio.timeout(60.0):  # as of a manager that lost its last commits
            again = await asyncio.gather(*(scored(hosts, name, one) for name, (one, _) in asked.items()))
        assert {verdict.request: verdict.score for verdict in again} == wanted
    given = journaled(tmp_path / "test.sqlite")
    assert sorted(given) == sorted(wanted.items()), "one verdict of each request, the one that was answered"


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

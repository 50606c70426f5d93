"""The main job across hosts in network namespaces; a host needs the right keys."""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_runs import RELEASED_STEPS
from two_hosts import REMOTE, Cluster, rlctl

from gleaner.actors.training.history import Restart, Step
from gleaner.chaos.netns import Host, why_not
from gleaner.configs.schema import Liveness
from gleaner.nodeagent.exit_codes import USAGE
from gleaner.rlctl.errors import INTERRUPTED

pytestmark = [
    pytest.mark.alone,
    pytest.mark.realprocess,
    pytest.mark.skipif(bool(why_not()), reason=f"no network namespaces: {why_not()}"),
    pytest.mark.timeout(900),
]

STRANGER = Path(__file__).with_name("stranger.py")
GREETING_BYTES = 128  # each client that connects gets ZeroMQ's greeting or a refusal; both are shorter


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Cluster]:
    """One cluster for successive jobs, as in production."""
    with Cluster(tmp_path_factory.mktemp("two-hosts"), model_dir) as cluster:
        cluster.up()
        yield cluster


def doors(host: Host) -> list[str]:
    """The endpoints on which processes on this host listen."""
    lines = host.run(["ss", "-Htln"], 30.0).stdout.splitlines()
    return [f"tcp://{line.split()[3]}" for line in lines]


def refused_by_head(cluster: Cluster) -> Counter[str]:
    """The refusals of the head's process so far, by reason."""
    shown = cluster.rlctl(cluster.laptop, "ps", "--json", *cluster.access())
    assert shown.returncode == 0, shown.stderr
    return Counter(json.loads(shown.stdout)["processes"][0]["refused"])


def test_host_without_keys_has_no_network_and_no_data(cluster: Cluster) -> None:
    stranger = cluster.switch.host("naked")
    here = f"tcp://{stranger.address}:7701"
    for role in (("--join", cluster.head), ("--role", "head")):
        process = cluster.popen("naked", stranger, *role, "--listen", here)
        assert process.wait(60.0) == USAGE
        assert f"{here} is open to a network and there are no keys" in cluster.output("naked")
        assert "rlctl keygen" in cluster.output("naked")
    shown = cluster.rlctl(stranger, "ps", "--head", cluster.head)
    assert shown.returncode != 0
    assert f"the process at {cluster.head} does not admit us" in shown.stderr


def test_job_trains_across_hosts_while_strangers_get_nothing(cluster: Cluster) -> None:
    made = rlctl("keygen", str(cluster.root / "foreign"), "--node", "mallory")
    assert made.returncode == 0, made.stderr
    foreign = cluster.root / "foreign" / "mallory"
    stranger = cluster.switch.host("stranger")
    before, received = refused_by_head(cluster), cluster.away.received_bytes()
    job = cluster.job()

    # A node that the head does not trust: it reports why it gets nothing, and continues to try.
    key = cluster.keys("head") / "node.public"
    here = f"tcp://{stranger.address}:0"
    join = ("--join", cluster.head, "--head-key", str(key), "--listen", here, "--bulk", "clear")
    mallory = cluster.popen("mallory", stranger, *join, "--keys", str(foreign))
    why = f"the process at {cluster.head} does not admit us"
    job.wait(lambda: why in cluster.output("mallory"), "the reason")
    job.wait(lambda: job.step() >= 1, "the first step")

    # Every port of the cluster.
    listening = [*doors(cluster.home), *doors(cluster.away)]
    addresses = {door.rpartition(":")[0] for door in listening}
    assert addresses == {f"tcp://{cluster.home.address}", f"tcp://{cluster.away.address}"}
    known = [(cluster.keys(node) / "node.public").read_text().strip() for node in ("head", REMOTE)]
    knocked = stranger.run(
        [sys.executable, str(STRANGER), ",".join([str(foreign), *known]), *listening], 180.0
    )
    assert knocked.returncode == 0, knocked.stderr
    result = json.loads(knocked.stdout)
    assert len(result) == len(listening) >= 8
    for door, (*spoken, stolen, noise) in result.items():
        for attempt in spoken:
            assert "up" not in attempt["links"], door
            assert attempt["frames"] == [], door
        assert max(stolen, noise) <= GREETING_BYTES, door
    assert any(attempt["links"] == ["rejected"] for spoken in result.values() for attempt in spoken[:-2])
    assert mallory.poll() is None, "it gave up trying"
    mallory.terminate()

    served = job.step() + 1  # by the instance on the other host, under weights that the run made
    job.wait(lambda: job.step() > served + RELEASED_STEPS, "steps after the strangers")
    assert job.stops() == INTERRUPTED, job.story()
    assert job.broken() == []
    assert "mallory" not in [*job.nodes("joined"), *job.nodes("killed")]
    assert not any(isinstance(record, Restart) for record in job.records())
    after = refused_by_head(cluster)
    assert after["unknown-key"] > before["unknown-key"]
    assert after["handshake"] > before["handshake"]
    assert "is not in trusted/" in cluster.log("head")
    assert "(unauthorized)" in cluster.log("reserved-1", "transfer")

    # The job did the same as it would have done without them.
    remote = job.remote_tokens()
    assert sum(remote.values()) > 0
    versions = {version for _incarnation, version in remote}
    assert max(versions) >= 1, "it served no weights that the run made"
    weights = (cluster.model / "model.safetensors").stat().st_size
    # One version came whole, of two bytes a weight where the file has four; others may have come as deltas.
    assert cluster.away.received_bytes() - received >= weights // 2
    assert not (cluster.state(REMOTE) / "journal" / job.run.id / "rollout.sqlite").exists()


def test_isolated_host_is_fenced_and_returns_as_another(cluster: Cluster) -> None:
    job = cluster.job()
    job.wait(lambda: job.step() >= 2, "the second step")
    cut_s = time.monotonic()
    cluster.switch.cut(cluster.home, cluster.away)
    job.wait(lambda: REMOTE in job.nodes("killed"), "its death is told")
    job.wait(
        lambda: f"instance {REMOTE}/engine#" in cluster.log("head", "rollout"), "its requests go elsewhere"
    )
    alone = job.step()
    job.wait(lambda: job.step() >= alone + 2, "the run goes on without it")
    job.wait(lambda: time.monotonic() - cut_s > Liveness().dead_s + 1, "longer than the limits")
    cluster.switch.heal()
    job.wait(lambda: job.nodes("joined").count(REMOTE) > 1, "it is back")
    back = job.step() + 2  # the instance takes part in the next step
    job.wait(lambda: job.step() > back + RELEASED_STEPS, "steps with the host")
    assert job.stops() == INTERRUPTED, job.story()

    assert job.broken() == []
    by_life: dict[int, set[int]] = {}
    for (incarnation, version), count in job.remote_tokens().items():
        assert count > 0
        by_life.setdefault(incarnation, set()).add(version)
    first, *_, last = (by_life[incarnation] for incarnation in sorted(by_life))
    assert max(first) <= alone < min(last)
    restarts = [record for record in job.records() if isinstance(record, Restart)]
    assert {record.actor for record in restarts} == {f"{REMOTE}/engine"}
    # The event that comes first: the manager refuses its stream, or its next registration.
    assert "crashed: Fenced: " in restarts[0].cause


def connections_between(home: Host, away: Host) -> int:
    """Established TCP connections of `home` with `away`."""
    shown = home.run(["ss", "-Htn", "state", "established", "dst", away.address], 30.0)
    return len(shown.stdout.splitlines())


@pytest.mark.long
def test_revoked_host_is_cut_off_until_trusted_again(
    cluster: Cluster,
) -> None:
    trusting = ("head", "reserved-1")
    job = cluster.job()
    job.wait(lambda: job.step() >= 2 and job.nodes("joined").count(REMOTE), "the second step, with the host")
    assert connections_between(cluster.home, cluster.away) > 4
    for node in trusting:
        result = rlctl("revoke", REMOTE, "--keys", str(cluster.keys(node)))
        assert result.returncode == 0, result.stderr
    job.wait(lambda: connections_between(cluster.home, cluster.away) == 0, "no connection is left", 10.0)
    job.wait(lambda: REMOTE in job.nodes("killed"), "its death is told")
    alone = job.step()
    job.wait(lambda: job.step() >= alone + 2, "the run goes on without it")
    for process in ("agent", "rollout", "reward"):
        assert "trusted now" in cluster.log("head", process), process

    for node in trusting:
        result = rlctl("trust", REMOTE, "--keys", str(cluster.keys(node)))
        assert result.returncode == 0, result.stderr
    job.wait(lambda: job.nodes("joined").count(REMOTE) > 1, "it is back")
    back = job.step() + 2  # the instance takes part in the next step
    job.wait(lambda: job.step() > back + RELEASED_STEPS, "steps with the host")
    assert job.stops() == INTERRUPTED, job.story()
    assert job.broken() == []
    by_life: dict[int, set[int]] = {}
    for incarnation, version in job.remote_tokens():
        by_life.setdefault(incarnation, set()).add(version)
    first, *_, last = (by_life[incarnation] for incarnation in sorted(by_life))
    assert max(first) <= alone < min(last)


@pytest.mark.long
def test_restarted_head_continues_job_and_noticed_host_leaves(
    cluster: Cluster,
) -> None:
    job = cluster.job("job.steps=8")
    job.wait(lambda: job.step() >= 2, "the second step")
    cluster.kill("head")
    cluster.start_head()
    step = job.step()
    job.wait(lambda: job.step() > step, "a step after it came back")
    result = cluster.rlctl(cluster.laptop, "preempt", REMOTE, "--notice", "5", *cluster.access())
    assert result.returncode == 0, result.stderr
    assert cluster.ended(REMOTE) == 0
    assert job.ends() == 0, job.story()
    assert job.broken(complete=True) == []
    assert [record.step for record in job.records() if isinstance(record, Step)] == list(range(1, 9))
    assert (job.nodes("noticed"), job.nodes("left"), job.nodes("killed")) == ([REMOTE], [REMOTE], [])

"""Node agents as real processes: they find each other, leave in order, and fail with clear reasons."""

import json
import socket
import subprocess

import pytest
from real_nodes import START_S, Nodes, wait_for

from gleaner.nodeagent.exit_codes import DAMAGED, IN_USE, NO_STATE, NOT_RUNNING, OK, USAGE
from gleaner.transport.keys import NodeKeys
from gleaner.transport.trusted import revoke, trust

pytestmark = pytest.mark.realprocess


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def test_host_joins_drains_and_head_stops_in_order(nodes: Nodes) -> None:
    head = nodes.start("head", "--role", "head")
    nodes.start("spot-1", "--join", head.endpoint)
    wait_for(lambda: "host spot-1 (preemptible): joined" in nodes.log("head"), what="join")

    shown = nodes.command("status", "--json", "--state-dir", str(nodes.root / "head"))
    status = json.loads(shown.stdout)
    figures = {actor["name"]: actor["figures"] for actor in status["process"]["actors"]}
    assert figures["cluster/scheduler"]["preemptible"] == 1
    assert figures["head/agent"]["head"] == "connected"

    drained = nodes.command("drain", "--deadline", "60", "--state-dir", str(nodes.root / "spot-1"))
    assert (drained.returncode, drained.stdout) == (OK, "spot-1: drained\n")
    assert nodes.processes["spot-1"].wait(START_S) == OK
    assert "host spot-1 (preemptible): left" in nodes.log("head")

    stopped = nodes.command("stop", "--state-dir", str(nodes.root / "head"))
    assert (stopped.returncode, stopped.stdout) == (OK, "head: stopped\n")
    assert nodes.processes["head"].wait(START_S) == OK
    gone = nodes.command("status", "--state-dir", str(nodes.root / "head"))
    assert gone.returncode == NOT_RUNNING
    assert "no node agent runs on" in gone.stderr


def test_sigterm_stops_in_order(nodes: Nodes) -> None:
    nodes.start("head", "--role", "head")
    nodes.processes["head"].terminate()
    assert nodes.processes["head"].wait(START_S) == OK
    assert "left in order" in nodes.log("head")
    assert not (nodes.root / "head" / "agent.json").exists()


def test_host_finds_a_head_that_was_killed_and_restarted(nodes: Nodes) -> None:
    listen = f"tcp://127.0.0.1:{free_port()}"
    head = nodes.start("head", "--role", "head", "--listen", listen)
    nodes.start("spot-1", "--join", head.endpoint)
    wait_for(lambda: "in touch" in nodes.log("spot-1"), what="join")
    nodes.processes["head"].kill()
    nodes.processes["head"].wait(START_S)
    wait_for(lambda: "the head does not answer" in nodes.log("spot-1"), what="loss")
    nodes.start("head", "--role", "head", "--listen", listen)
    wait_for(lambda: nodes.log("spot-1").count("in touch with the head") >= 2, what="return")
    assert nodes.processes["spot-1"].poll() is None


def test_only_preemptible_hosts_drain(nodes: Nodes) -> None:
    nodes.start("head", "--role", "head")
    refused = nodes.command("drain", "--state-dir", str(nodes.root / "head"))
    assert refused.returncode == 1
    assert "only preemptible and reward ones drain" in refused.stderr


def test_second_agent_on_a_state_directory_is_refused(nodes: Nodes) -> None:
    first = nodes.start("head", "--role", "head")
    code, printed = nodes.fails("other", "--role", "head", state_dir=nodes.root / "head")
    assert code == IN_USE
    assert f"pid {first.pid}" in printed
    assert nodes.processes["head"].poll() is None


def test_port_in_use_is_named(nodes: Nodes) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        code, printed = nodes.fails("head", "--role", "head", "--listen", address)
    assert code == IN_USE
    assert address in printed
    assert "another process listens there" in printed


def test_nothing_listens_beyond_loopback_without_keys(nodes: Nodes) -> None:
    code, printed = nodes.fails("head", "--role", "head", "--listen", "tcp://10.255.255.1:7700")
    assert code == USAGE
    assert "rlctl keygen" in printed


def test_unencrypted_weights_require_an_explicit_option(nodes: Nodes) -> None:
    NodeKeys.generate().save(nodes.root / "k")
    key = str(nodes.root / "k" / "node.public")
    join = ("--join", "tcp://10.255.255.1:7700", "--head-key", key, "--keys", str(nodes.root / "k"))
    listen = ("--listen", "tcp://10.255.255.2:0")
    code, printed = nodes.fails("spot-1", *join, *listen)
    assert code == USAGE
    assert "tcp://10.255.255.2:0: weights would leave this host unencrypted" in printed
    assert "--bulk clear" in printed
    code, printed = nodes.fails("spot-2", *join, *listen, "--bulk", "clear")
    assert code == IN_USE  # now the agent tried, and this host has no such address
    assert "no interface of this host has that address" in printed


def test_key_directory_without_keys_is_named(nodes: Nodes) -> None:
    code, printed = nodes.fails("head", "--role", "head", "--keys", str(nodes.root / "nokeys"))
    assert code == USAGE
    assert "nokeys/node.public is missing" in printed


def test_hosts_with_keys_find_each_other(nodes: Nodes) -> None:
    head_keys, spot_keys = NodeKeys.generate(), NodeKeys.generate()
    NodeKeys(head_keys.public, head_keys.secret, frozenset({spot_keys.public})).save(nodes.root / "hk")
    NodeKeys(spot_keys.public, spot_keys.secret, frozenset({head_keys.public})).save(nodes.root / "sk")
    head = nodes.start("head", "--role", "head", "--keys", str(nodes.root / "hk"))
    key = str(nodes.root / "hk" / "node.public")
    nodes.start("spot-1", "--join", head.endpoint, "--keys", str(nodes.root / "sk"), "--head-key", key)
    wait_for(lambda: "spot-1 (preemptible): joined" in nodes.log("head"), what="join")
    assert nodes.command("status", "--state-dir", str(nodes.root / "head")).returncode == OK


def test_host_not_admitted_by_the_head_keeps_trying(nodes: Nodes) -> None:
    NodeKeys.generate().save(nodes.root / "hk")
    NodeKeys.generate().save(nodes.root / "sk")
    head = nodes.start("head", "--role", "head", "--keys", str(nodes.root / "hk"))
    key = str(nodes.root / "hk" / "node.public")
    nodes.start("spot-1", "--join", head.endpoint, "--keys", str(nodes.root / "sk"), "--head-key", key)
    nodes.start("spot-2", "--join", head.endpoint)
    for name in ("spot-1", "spot-2"):
        wait_for(lambda name=name: f"{head.endpoint} does not admit us" in nodes.output(name), what=name)  # type: ignore[misc]
        shown = nodes.command("status", "--state-dir", str(nodes.root / name))
        assert "not reached: " in shown.stdout
        assert "does not admit us: it needs keys" in shown.stdout
        assert nodes.processes[name].poll() is None
    assert "is not in trusted/" in nodes.log("head")
    assert "joined" not in nodes.log("head")


def test_host_is_trusted_and_revoked_at_run_time(nodes: Nodes) -> None:
    hk, sk = nodes.root / "hk", nodes.root / "sk"
    for folder in (hk, sk):
        NodeKeys.generate().save(folder)
    trust(sk, "head", NodeKeys.load(hk).public)
    head = nodes.start("head", "--role", "head", "--keys", str(hk))
    key = str(hk / "node.public")
    nodes.start("spot-1", "--join", head.endpoint, "--keys", str(sk), "--head-key", key)
    wait_for(lambda: "does not admit us" in nodes.output("spot-1"), what="refusal")

    trust(hk, "spot-1", NodeKeys.load(sk).public)
    wait_for(lambda: "spot-1 (preemptible): joined" in nodes.log("head"), what="join")
    wait_for(lambda: "in touch with the head" in nodes.log("spot-1"), what="touch")

    (hk / "trusted" / "damaged.public").write_text("half a k")
    revoke(hk, "spot-1")
    wait_for(lambda: "damaged.public holds no key" in nodes.log("head"), what="report of the damage")
    assert "0 keys are trusted now" not in nodes.log("head")
    revoke(hk, "damaged")
    wait_for(lambda: "0 keys are trusted now, 1 before" in nodes.log("head"), what="revoke")
    wait_for(lambda: nodes.output("spot-1").count("does not admit us") >= 2, what="the second refusal")
    shown = nodes.command("status", "--json", "--state-dir", str(nodes.root / "head"))
    [agent] = [it for it in json.loads(shown.stdout)["process"]["actors"] if it["name"] == "head/agent"]
    figures = agent["figures"]
    assert (figures["keys_trusted"], figures["keys_changes"], figures["keys_problem"]) == (0, 2, "")

    trust(hk, "spot-1", NodeKeys.load(sk).public)
    wait_for(lambda: nodes.log("spot-1").count("in touch with the head") >= 2, what="return")


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("--role", "head", "--join", "tcp://127.0.0.1:1"), "joins no other head"),
        (("--role", "reserved"), "needs --join"),
        (("--join", "nowhere"), "tcp://10.0.0.1:7700"),
        (("--listen", "tcp://127.0.0.1:99999"), "a port up to 65535"),
        (("--join", "tcp://10.0.0.1:7700"), "could not reach this host"),
        (("--join", "tcp://127.0.0.1:1", "--fleet", "local"), "only a head"),
        (("--join", "tcp://127.0.0.1:1", "--keys", "k"), "needs --head-key"),
    ],
)
def test_conflicting_options_are_refused(nodes: Nodes, args: tuple[str, ...], word: str) -> None:
    code, printed = nodes.fails("x", *args)
    assert code == USAGE
    assert word in printed


def test_help_teaches_by_example(nodes: Nodes) -> None:
    shown = nodes.command("start", "--help")
    assert shown.returncode == OK
    assert "nodeagent start --join tcp://10.0.0.1:7700" in shown.stdout
    assert "exit codes:" in shown.stdout


def test_state_directory_that_is_a_file_is_named(nodes: Nodes) -> None:
    (nodes.root / "file").write_text("")
    code, printed = nodes.fails("head", "--role", "head", state_dir=nodes.root / "file" / "state")
    assert code == NO_STATE
    assert "file/state" in printed
    assert "--state-dir" in printed


def test_full_state_directory_is_named(nodes: Nodes) -> None:
    small = nodes.root / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("no right to mount a small disk here")
    try:
        code, printed = nodes.fails("head", "--role", "head", state_dir=small / "state")
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
    assert code == NO_STATE
    assert str(small) in printed
    assert "free space" in printed


def test_damaged_journal_is_refused_and_named(nodes: Nodes) -> None:
    journal = nodes.root / "head" / "journal" / "agent.sqlite"
    journal.parent.mkdir(parents=True)
    journal.write_bytes(b"not a journal at all" * 500)
    code, printed = nodes.fails("head", "--role", "head")
    assert code == DAMAGED
    assert str(journal) in printed
    assert "move it away" in printed
    assert str(journal) in nodes.log("head").splitlines()[-1]

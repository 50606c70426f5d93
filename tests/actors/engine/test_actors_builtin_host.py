"""BuiltinHost: refuses only the requests of a message that it cannot serve."""

from array import array
from pathlib import Path

import pytest
from msgspec.structs import replace

from gleaner.actors.engine.builtin.host import BuiltinHost
from gleaner.actors.engine.builtin.settings import BuiltinSettings
from gleaner.actors.engine.servers.port import LoadFailed
from gleaner.actors.engine.worker.port import StepCommands
from gleaner.actors.protocol.experts import ExpertsWanted
from gleaner.actors.protocol.instances import Work
from gleaner.actors.protocol.sampling_params import Grammar, Sampling
from gleaner.actors.protocol.score_rows import Scores
from gleaner.configs.load import from_tree
from gleaner.configs.schema import Config
from tests.actors.engine.servers.test_servers_sglang import MODEL, published


def work(ticket: int, token: int, experts: ExpertsWanted | None = None) -> Work:
    return Work(
        ticket=ticket,
        prompt=array("I", [token]).tobytes(),
        prefix=b"",
        seed=0,
        max_new_tokens=4,
        temperature=1.0,
        experts=experts,
    )


def test_only_unservable_requests_are_refused_for_ever(tmp_path: Path) -> None:
    host = BuiltinHost(BuiltinSettings.of(Config()))
    wanted = ExpertsWanted(follower="rollout/gateway", id="r", attempt=1)
    scored = replace(wanted, scores=Scores(top=2))
    bound = replace(work(6, 6), sampling=Sampling(grammar=Grammar(kind="regex", text="a")))
    sent = [work(1, 5), work(2, MODEL.vocab_size), work(3, 6, wanted), work(4, 7), work(5, 6, scored), bound]
    turn = host.turn(StepCommands(load=published(tmp_path)[1], adds=[(3, sent)]))
    assert sorted(tuple(refusal.tickets) for refusal in turn.refusals) == [(2,), (3,), (5,), (6,)]
    assert all(refusal.never for refusal in turn.refusals)
    why = {refusal.tickets[0]: refusal.why for refusal in turn.refusals}
    for ticket, field in ((5, "top_logprobs"), (6, "regex")):
        assert field in why[ticket]
        assert "builtin engine" in why[ticket]
    assert turn.output is not None
    assert sorted(turn.output.tickets.tolist()) == [1, 4]


def test_staged_weights_are_loaded_without_their_image(tmp_path: Path) -> None:
    host = BuiltinHost(BuiltinSettings.of(Config()))
    host.turn(StepCommands(load=published(tmp_path / "one")[1]))
    fetched = replace(published(tmp_path / "two")[1], version=4, root=b"4" * 32)
    host.stage(fetched)
    Path(fetched.path).unlink()
    turn = host.turn(StepCommands(load=fetched, adds=[(4, [work(1, 5)])]))
    assert (turn.load_failed, turn.version, turn.root) == ("", 4, b"4" * 32)
    gone = replace(fetched, version=5, root=b"5" * 32)
    assert "version 5 was not loaded" in host.turn(StepCommands(load=gone)).load_failed
    assert host.turn(StepCommands()).version == 4


def test_staged_weights_load_after_others_failed_to_stage(
    tmp_path: Path,
) -> None:
    host = BuiltinHost(BuiltinSettings.of(Config()))
    host.turn(StepCommands(load=published(tmp_path / "one")[1]))
    sound = replace(published(tmp_path / "two")[1], version=4, root=b"4" * 32)
    host.stage(sound)
    with pytest.raises(LoadFailed):
        host.stage(replace(sound, version=5, root=b"5" * 32, tensors=sound.tensors[:-1]))
    assert host.turn(StepCommands(load=sound)).version == 4


def test_half_of_the_threads_makes_the_same_tokens(tmp_path: Path) -> None:
    """Requests stay where they are, as the threads share one cache."""
    rows = {}
    for halved in (False, True):
        host = BuiltinHost(BuiltinSettings.of(from_tree({"engine": {"threads": 2}}, "test")))
        assert host.halves
        fetched = published(tmp_path / str(halved))[1]
        adds = [(3, [work(ticket, 5) for ticket in range(1, 5)])]
        turns = [host.turn(StepCommands(load=fetched, adds=adds))]
        for half in (halved, None, False, None):
            turns.append(host.turn(StepCommands(half=half)))
            assert host._engine is not None
            if half is not None:
                assert host._engine._blocks._threads == (1 if half else 2)
        rows[halved] = [
            (turn.output.tickets.tolist(), turn.output.tokens.tolist(), turn.output.flags.tolist())
            for turn in turns
            if turn.output is not None
        ]
    assert len(rows[True]) >= 3, "nothing was decoded on half"
    assert rows[True] == rows[False]


@pytest.mark.parametrize(("threads", "halves"), [(1, False), (2, True), (3, False), (4, True)])
def test_odd_number_of_threads_has_no_halves(threads: int, halves: bool) -> None:
    assert (
        BuiltinHost(BuiltinSettings.of(from_tree({"engine": {"threads": threads}}, "test"))).halves == halves
    )

"""The builtin engine's host: what it cannot serve it refuses alone, whatever was sent along with it."""

from array import array
from pathlib import Path

from actors.engine.host import BuiltinHost
from actors.engine.turn import Orders
from actors.rollout.expert_messages import ExpertsWanted
from actors.rollout.instance_messages import Work
from configs.schema import Config
from tests.actors.engine.test_actors_sglang import MODEL, published


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


def test_only_what_it_cannot_serve_is_refused_for_ever(tmp_path: Path) -> None:
    host = BuiltinHost(Config())
    wanted = ExpertsWanted(follower="rollout/gateway", id="r", attempt=1)
    sent = [work(1, 5), work(2, MODEL.vocab_size), work(3, 6, wanted), work(4, 7)]
    turn = host.turn(Orders(load=published(tmp_path)[1], adds=[(3, sent)]))
    assert sorted(tuple(refusal.tickets) for refusal in turn.refusals) == [(2,), (3,)]
    assert all(refusal.never for refusal in turn.refusals)
    assert turn.output is not None
    assert sorted(turn.output.tickets.tolist()) == [1, 4]

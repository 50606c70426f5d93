"""The modelled engine behind its port.

It accepts and refuses the same work as the builtin engine, and takes its modelled time.
"""

from array import array
from pathlib import Path

import pytest
from msgspec.structs import replace

from gleaner.actors.engine.worker.port import EngineHost, StepCommands, StepResult
from gleaner.actors.protocol.instances import Work
from gleaner.actors.protocol.sampling_params import Sampling
from gleaner.actors.protocol.weights import Fetched
from gleaner.sim.models.batching import Limits
from gleaner.sim.models.clock import Immediate
from gleaner.sim.models.engine_cost import EngineCost
from gleaner.sim.models.engine_host import Engine, SimEngineHost
from gleaner.sim.models.lengths import LengthLaw
from gleaner.sim.models.tokens import response
from gleaner.sim.models.weight_bytes import BrokenImage, image_of
from gleaner.transport.token_frame import Flag

WEIGHTS = b"\x11" * 32
COST = EngineCost(weights_s=0.01, step_s=0.001, prefill_token_s=1e-4)


class World:
    """One host with an engine."""

    def __init__(self, *, follow: bool = False, max_pending: int = 4) -> None:
        self.memory = {
            Path(f"/images/{version}"): image_of(bytes([version]) * 32, 8192) for version in (1, 2)
        }
        self.clock = Immediate()
        engine = Engine(
            cost=COST,
            limits=Limits(slots=2, cache_tokens=1000),
            law=LengthLaw(median=20, sigma=0.5),
            vocabulary=500,
            load_s=3.0,
            max_tokens=100,
            max_pending=max_pending,
            tokens_follow_inputs=follow,
        )
        self.host: EngineHost = SimEngineHost(engine, self.memory, self.clock)

    def load(self, version: int) -> StepResult:
        return self.host.turn(StepCommands(load=fetched(version)))

    def finish(self, *adds: tuple[int, list[Work]]) -> dict[int, list[int]]:
        tokens: dict[int, list[int]] = {}
        turn = self.host.turn(StepCommands(adds=list(adds)))
        while True:
            if turn.output is not None:
                rows = zip(turn.output.tickets.tolist(), turn.output.tokens.tolist(), strict=True)
                for ticket, token in rows:
                    tokens.setdefault(ticket, []).append(token)
            if turn.idle:
                return tokens
            turn = self.host.turn(StepCommands())


def fetched(version: int) -> Fetched:
    return Fetched(
        version=version,
        root=bytes([version]),
        path=f"/images/{version}",
        tensors=(),
        model_config=b"",
        pulled_bytes=0,
        seconds=0.0,
    )


def work(ticket: int, *, prefix: list[int] | None = None, prompt: int = 5, limit: int = 50) -> Work:
    return Work(
        ticket=ticket,
        prompt=array("I", range(1, prompt + 1)).tobytes(),
        prefix=array("I", prefix or []).tobytes(),
        seed=1000 + ticket,
        max_new_tokens=limit,
        temperature=1.0,
    )


def test_engine_without_weights_refuses_everything() -> None:
    turn = World().host.turn(StepCommands(adds=[(1, [work(1), work(2)])]))
    assert [refusal.tickets for refusal in turn.refusals] == [[1, 2]]
    assert (turn.version, turn.root, turn.idle) == (None, b"", True)


def test_engine_serves_loaded_version_after_its_load_time() -> None:
    world = World()
    turn = world.load(1)
    assert (turn.version, turn.root) == (1, b"\x01")
    assert world.clock.spent_s == 3.0
    refused = world.host.turn(StepCommands(adds=[(2, [work(1)])]))
    assert "serves version 1, not 2" in refused.refusals[0].why


def test_damaged_image_is_not_served() -> None:
    world = World()
    damaged = bytearray(world.memory[Path("/images/1")])
    damaged[5000] ^= 1
    world.memory[Path("/images/1")] = bytes(damaged)
    with pytest.raises(BrokenImage):
        world.load(1)
    with pytest.raises(BrokenImage, match="evicted"):
        world.load(3)


def test_response_continues_from_its_prefix_on_another_host() -> None:
    whole, first, second = World(), World(), World()
    for world in (whole, first, second):
        world.load(1)
    expected = whole.finish((1, [work(1)]))[1]
    assert expected == response(1001, len(expected), 500).tolist()
    first.host.turn(StepCommands(adds=[(1, [work(1)])]))
    begun = expected[:7]
    rest = second.finish((1, [work(1, prefix=begun)]))[1]
    assert begun + rest == expected


def test_loading_ends_the_work_of_the_older_version() -> None:
    world = World()
    world.load(1)
    world.host.turn(StepCommands(adds=[(1, [work(1), work(2), work(3)])]))
    turn = world.host.turn(StepCommands(load=fetched(2)))
    assert turn.version == 2
    assert turn.output is not None
    assert sorted(turn.output.tickets.tolist()) == [1, 2, 3]
    assert all(flags & Flag.ABORTED for flags in turn.output.flags.tolist())
    assert turn.idle


def test_other_weights_give_other_tokens_only_when_configured() -> None:
    def tokens(version: int, follow: bool) -> list[int]:
        world = World(follow=follow)
        world.load(version)
        return world.finish((version, [work(1)]))[1]

    assert tokens(1, follow=False) == tokens(2, follow=False)
    assert tokens(1, follow=True) != tokens(2, follow=True)
    assert tokens(1, follow=True) == tokens(1, follow=True)


def test_tokens_and_logprobs_follow_all_that_is_asked_for() -> None:
    asked = work(1)
    others = [
        replace(asked, prompt=asked.prompt[:-4] + b"\7\0\0\0"),
        replace(asked, temperature=0.5),
        replace(asked, sampling=Sampling(top_p=0.5)),
        replace(asked, seed=2),
    ]

    def first_row(item: Work, *, follow: bool = True) -> tuple[int, float]:
        world = World(follow=follow)
        world.load(1)
        output = world.host.turn(StepCommands(adds=[(1, [item])])).output
        assert output is not None
        return int(output.tokens[0]), float(output.logprobs[0])

    assert first_row(asked) == first_row(replace(asked, prefix=b""))
    assert len({first_row(item) for item in (asked, *others)}) == 5
    assert len({first_row(item, follow=False) for item in (asked, *others)}) == 2, "the seed alone"


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (work(1, prompt=0), "prompt is empty"),
        (work(1, prefix=[7] * 10, limit=10), "all of its 10 tokens"),
        (work(1, prompt=60, limit=50), "more than the engine holds"),
    ],
)
def test_unservable_request_is_refused_with_its_ticket(item: Work, why: str) -> None:
    world = World()
    world.load(1)
    turn = world.host.turn(StepCommands(adds=[(1, [item])]))
    assert turn.refusals[0].tickets == [1]
    assert why in turn.refusals[0].why


def test_ticket_is_served_once_and_queue_is_bounded() -> None:
    world = World()
    world.load(1)
    world.host.turn(StepCommands(adds=[(1, [work(1)])]))
    assert "served already" in world.host.turn(StepCommands(adds=[(1, [work(1)])])).refusals[0].why
    many = [work(ticket) for ticket in range(10, 20)]
    turn = world.host.turn(StepCommands(adds=[(1, many)]))
    assert turn.refusals[0].tickets == list(range(10, 20))


def test_samples_of_one_prompt_have_similar_lengths() -> None:
    world = World(max_pending=1000)
    world.load(1)
    lengths = []
    for prompt in (1, 2, 3, 4, 5, 6, 7, 8):
        group = [work(100 * prompt + n, prompt=prompt) for n in range(16)]
        lengths.append([len(tokens) for tokens in world.finish((1, group)).values()])
    spread_within = sum(max(group) - min(group) for group in lengths) / len(lengths)
    everything = [length for group in lengths for length in group]
    assert spread_within < max(everything) - min(everything)


def test_kept_request_continues_with_tokens_of_newer_weights() -> None:
    world, fresh = World(follow=True), World(follow=True)
    world.load(1)
    first = world.host.turn(StepCommands(adds=[(1, [work(1), work(2), work(3)])]))  # one of the two waits
    assert first.output is not None
    before = dict(zip(first.output.tickets.tolist(), first.output.tokens.tolist(), strict=True))
    turn = world.host.turn(StepCommands(load=fetched(2), keep=True))
    assert sorted(turn.kept or []) == [1, 2, 3]
    assert (turn.output, turn.version, turn.idle) == (None, 2, False)
    fresh.load(2)
    rest = [work(ticket, prefix=[before[ticket]] if ticket in before else None) for ticket in turn.kept or []]
    assert world.finish() == fresh.finish((2, rest))

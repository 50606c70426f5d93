"""Laws of RolloutState over random histories: no loss, no duplicate, exact replay."""

import random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_world import World, logprobs_of, tokens_of, true_crc, true_length, true_token

from gleaner.actors.rollout.state.events import BatchReleased, FrameLogged
from gleaner.actors.rollout.state.state import RolloutState
from gleaner.supervisor import Message
from gleaner.supervisor.message import decode_body, encode_body, kind_of

histories = st.builds(
    lambda seed, moves: (seed, moves), st.integers(0, 2**32), st.integers(min_value=0, max_value=120)
)


def lived(history: tuple[int, int]) -> World:
    world = World(random.Random(history[0]))
    world.run(history[1])
    return world


def through_disk(event: Message) -> Message:
    return decode_body(kind_of(event), encode_body(event))


@settings(max_examples=150, deadline=None)
@given(histories)
def test_every_log_is_a_prefix_of_its_response(
    history: tuple[int, int],
) -> None:
    world = lived(history)
    for log in world.state.log.requests.values():
        assert log.tokens_crc() == true_crc(log)
        if log.crc is None:  # the log was not handed out
            assert tokens_of(log) == [true_token(log.id, position) for position in range(len(log))]
            assert logprobs_of(log) == [-0.5 * position for position in range(len(log))]
    assert world.state.tokens_lost == 0


@settings(max_examples=150, deadline=None)
@given(histories)
def test_every_history_hands_out_each_group_once(history: tuple[int, int]) -> None:
    world = lived(history)
    world.finish()
    for log in world.state.log.requests.values():
        assert len(log) == true_length(log.id)
        assert sum(span.count for span in log.spans) == len(log)
    assert sorted(group for taker, group in world.handed if taker == world.taker) == [0, 1]
    collected = sum(true_length(log) for log in world.state.log.requests)
    assert world.state.counters.tokens_collected == collected
    world.apply(BatchReleased(batch="step-1"))
    assert world.state.tokens_lost == 0
    assert not world.state.log.requests
    assert all(not stream.tickets for stream in world.state.streams.values())


@settings(max_examples=150, deadline=None)
@given(histories, st.floats(0, 1))
def test_replay_from_any_snapshot_gives_the_live_state(history: tuple[int, int], where: float) -> None:
    world = lived(history)
    cut = round(where * len(world.events))
    before = RolloutState()
    for event in world.events[:cut]:
        before.apply(event)
    rebuilt = RolloutState()
    rebuilt.apply(through_disk(before.snapshot()))
    for event in world.events[cut:]:
        rebuilt.apply(through_disk(event))
    assert rebuilt.snapshot() == world.state.snapshot()
    assert rebuilt.check() == []
    queued = [log.id for log in world.state.log.queued()]
    assert [log.id for log in rebuilt.log.queued()] == queued


@settings(max_examples=60, deadline=None)
@given(histories)
def test_repeated_frames_change_no_log(history: tuple[int, int]) -> None:
    world = lived(history)
    before = [msgspec.msgpack.encode(batch.requests) for batch in world.state.snapshot().batches]
    for frame in world.old_frames:
        world.apply(frame)
    assert [msgspec.msgpack.encode(batch.requests) for batch in world.state.snapshot().batches] == before


def merged(events: list[Message], rng: random.Random) -> list[Message]:
    """The same history with runs of frames of one incarnation as one event."""
    out: list[Message] = []
    for event in events:
        last = out[-1] if out else None
        if (
            isinstance(event, FrameLogged)
            and isinstance(last, FrameLogged)
            and (event.instance, event.incarnation) == (last.instance, last.incarnation)
            and event.seq == last.seq + 1
            and rng.random() < 0.8
        ):
            columns = {
                name: getattr(last, name) + getattr(event, name)
                for name in ("tickets", "tokens", "logprobs", "flags")
            }
            out[-1] = msgspec.structs.replace(
                last, seq=event.seq, frames=last.frames + event.frames, **columns
            )
        else:
            out.append(event)
    return out


@settings(max_examples=150, deadline=None)
@given(histories)
def test_joined_frames_equal_single_frames(history: tuple[int, int]) -> None:
    rng = random.Random(history[0])
    world = lived(history)
    accepted, seen = [], RolloutState()
    for event in world.events:  # duplicates and gaps are not joined because the intake gets none
        if not (
            isinstance(event, FrameLogged) and {"gap", "duplicate", "fenced"} & set(seen.apply(event).refused)
        ):
            accepted.append(event)
            if not isinstance(event, FrameLogged):
                seen.apply(event)
    one_by_one, joined = RolloutState(), RolloutState()
    for event in accepted:
        one_by_one.apply(event)
    for event in merged(accepted, rng):
        joined.apply(event)
    assert joined.check() == []
    assert joined.snapshot() == one_by_one.snapshot()

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Sequence

import pytest
import torch
from torch import Tensor

from gleaner.actors.engine.builtin.decoder import Decoder
from gleaner.actors.engine.builtin.engine import BuiltinEngine
from gleaner.actors.engine.builtin.engine_size import EngineSize
from gleaner.actors.engine.worker.engine_port import (
    Assignment,
    BrokenWeights,
    CannotServe,
    Engine,
    EngineBusy,
    EngineFull,
)
from gleaner.actors.model.flat_image import image_bytes, weight_layout, write_weights
from gleaner.actors.model.qwen3 import Qwen3
from gleaner.actors.protocol.sampling_params import Grammar, Sampling
from gleaner.transport.token_frame import MAX_ROWS, Flag

MakeModel = Callable[..., Qwen3]
Row = tuple[int, float, int]  # token, log-prob, flags


def engine_of(
    model: Qwen3, slots: int = 4, eos: Sequence[int] = (95,), weights_version: int = 0, **size: int
) -> BuiltinEngine:
    bounds = EngineSize(slots=slots, max_tokens=128, **size)
    return BuiltinEngine(model, bounds, eos_token_ids=eos, weights_version=weights_version)


def queued(engine: BuiltinEngine, assignments: Iterable[Assignment]) -> BuiltinEngine:
    engine.add(assignments)
    return engine


def collect(engine: Engine, steps: int | None = None) -> dict[int, list[Row]]:
    """The rows by ticket of this many steps, or of all steps until the engine is idle."""
    rows: dict[int, list[Row]] = {}
    while not engine.idle and steps != 0:
        out = engine.step()
        for ticket, *row in zip(
            *(c.tolist() for c in (out.tickets, out.tokens, out.logprobs, out.flags)), strict=True
        ):
            rows.setdefault(ticket, []).append(tuple(row))
        steps = None if steps is None else steps - 1
    return rows


def requests(count: int, longest: int = 40) -> list[Assignment]:
    """Requests with prompts and limits of many lengths, every third at another temperature."""
    return [
        Assignment(
            ticket=100 + i,
            prompt=[(7 * i + j * j) % 95 for j in range(1 + (i * 5) % 23)],
            seed=i,
            max_new_tokens=1 + (i * 11) % longest,
            temperature=0.7 if i % 3 == 0 else 1.0,
        )
        for i in range(count)
    ]


def tokens_of(rows: dict[int, list[Row]]) -> dict[int, list[int]]:
    return {
        ticket: [token for token, _, flags in part if not flags & Flag.NO_TOKEN]
        for ticket, part in rows.items()
    }


def aborts(rows: Iterable[Row]) -> list[bool]:
    return [flags == Flag.ABORTED | Flag.NO_TOKEN for _, _, flags in rows]


def test_request_gets_equal_tokens_alone_and_in_batches(make_model: MakeModel) -> None:
    model = make_model()
    crowd = requests(25)
    together = tokens_of(collect(queued(engine_of(model, slots=6), crowd)))
    assert together == tokens_of(collect(queued(engine_of(model, slots=25), crowd[::-1])))
    for one in crowd:
        assert tokens_of(collect(queued(engine_of(model, slots=1), [one]))) == {
            one.ticket: together[one.ticket]
        }
    assert len({tuple(tokens) for tokens in together.values()}) > 20


@pytest.mark.parametrize("threads", [2, 3])
def test_several_threads_give_the_tokens_of_one(
    make_model: MakeModel, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, crowd, on = make_model(), requests(120), set[int]()
    alone = collect(queued(engine_of(model, slots=80), crowd))
    decode = Decoder.decode

    def noted(self: Decoder, *args: object, **kwargs: object) -> Tensor:
        on.add(threading.get_ident())
        return decode(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Decoder, "decode", noted)
    together = collect(queued(engine_of(model, slots=80, threads=threads), crowd))
    assert tokens_of(together) == tokens_of(alone)
    for ticket, rows in together.items():
        assert [logprob for _, logprob, _ in rows] == pytest.approx(
            [row[1] for row in alone[ticket]], abs=1e-4
        )
    assert len(on) >= threads  # and the engine's own thread, for the last few requests


def test_non_finite_block_fails_the_step_on_threads(make_model: MakeModel) -> None:
    model = make_model()
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(BrokenWeights, match="are no numbers"):
        queued(engine_of(model, slots=80, threads=2), requests(80)).step()


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.0])
def test_cut_request_continues_elsewhere_as_if_uncut(make_model: MakeModel, temperature: float) -> None:
    model = make_model()
    whole = Assignment(ticket=1, prompt=[3, 1, 4, 1, 5], seed=77, max_new_tokens=30, temperature=temperature)
    stayed = collect(queued(engine_of(model, eos=[]), [whole]))[1]
    response = [token for token, _, _ in stayed]
    assert len(response) == 30
    parts = [dataclasses.replace(whole, ticket=cut, prefix=response[:cut]) for cut in range(1, 30)]
    moved = collect(queued(engine_of(make_model(), slots=5, eos=[]), parts))
    for cut, rows in moved.items():
        assert [token for token, _, _ in rows] == response[cut:]
        assert [logprob for _, logprob, _ in rows] == pytest.approx(
            [row[1] for row in stayed[cut:]], abs=1e-4
        )
        assert rows[0][2] & Flag.FIRST


def test_bias_forces_or_forbids_tokens_and_log_probs(make_model: MakeModel) -> None:
    model = make_model()
    asked = {1: Sampling(logit_bias=((7, 100.0),)), 2: Sampling(logit_bias=((7, 1.0), (8, 1.0))), 3: None}
    crowd = [
        Assignment(ticket=ticket, prompt=[1, 2], seed=5, max_new_tokens=9, sampling=sampling)
        for ticket, sampling in asked.items()
    ]
    rows = collect(queued(engine_of(model, eos=[]), crowd))
    assert [token for token, _, _ in rows[1]] == [7] * 9
    assert [logprob for _, logprob, _ in rows[1]] == pytest.approx([0.0] * 9, abs=1e-4)
    alone = collect(queued(engine_of(make_model(), eos=[]), [crowd[2]]))
    assert [row[0] for row in alone[3]] == [row[0] for row in rows[3]], "other requests are sampled as before"


def test_logprobs_equal_those_of_the_training_forward(make_model: MakeModel) -> None:
    model = make_model()
    crowd = requests(20)
    rows = collect(queued(engine_of(model, slots=7), crowd))
    for one in crowd:
        response = [row[0] for row in rows[one.ticket]]
        with torch.no_grad():
            logits = model(torch.tensor([[*one.prompt, *response]]))[0, len(one.prompt) - 1 : -1]
        expected = (logits / one.temperature).log_softmax(-1).gather(1, torch.tensor(response).unsqueeze(1))
        assert [row[1] for row in rows[one.ticket]] == pytest.approx(expected.squeeze(1).tolist(), abs=1e-4)


def test_request_ends_once_at_limit_or_stop_token(make_model: MakeModel) -> None:
    crowd = [dataclasses.replace(one, max_new_tokens=100) for one in requests(30)]
    rows = collect(queued(engine_of(make_model(), slots=8), crowd))
    assert rows.keys() == {one.ticket for one in crowd}
    stopped = 0
    for part in rows.values():
        tokens, flags = [row[0] for row in part], [row[2] for row in part]
        assert [bool(flag & Flag.FIRST) for flag in flags] == [True] + [False] * (len(part) - 1)
        assert [bool(flag & Flag.FINISHED) for flag in flags] == [False] * (len(part) - 1) + [True]
        assert 95 not in tokens[:-1]
        assert len(tokens) == 100 or tokens[-1] == 95
        stopped += tokens[-1] == 95
    assert stopped > 0


def test_steps_serve_all_slots_and_no_more(make_model: MakeModel) -> None:
    engine = queued(engine_of(make_model(), slots=5), requests(12))
    assert (engine.pending, engine.executing) == (12, 0)
    made = 0
    while not engine.idle:
        busy = min(5, engine.executing + engine.pending)
        rows = engine.step()
        assert len(rows) == busy
        made += busy
    stats = engine.stats()
    assert (stats.tokens_generated, stats.executing, stats.pending) == (made, 0, 0)
    again = tokens_of(collect(queued(engine_of(make_model(), slots=5), requests(12))))
    assert made == sum(map(len, again.values()))


def test_equal_prompts_share_one_prefill_in_a_step(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(make_model(), slots=8)
    prefills: list[int] = []
    plain = engine._decoder.prefill

    def counting(contexts: Sequence[Sequence[int]], first_slot: int) -> None:
        prefills.append(len(contexts))
        plain(contexts, first_slot)

    monkeypatch.setattr(engine._decoder, "prefill", counting)
    group = [Assignment(ticket=i, prompt=[9, 8, 7, 6], seed=i, max_new_tokens=5) for i in range(8)]
    responses = tokens_of(collect(queued(engine, group)))
    assert prefills == [8]
    for one in group:
        assert tokens_of(collect(queued(engine_of(make_model()), [one]))) == {
            one.ticket: responses[one.ticket]
        }


def test_aborted_ticket_gets_one_last_row(make_model: MakeModel) -> None:
    crowd = [dataclasses.replace(one, max_new_tokens=20, prompt=[1, 2, 3]) for one in requests(4)]
    undisturbed = tokens_of(collect(queued(engine_of(make_model(), eos=[]), crowd)))
    engine = queued(engine_of(make_model(), slots=2, eos=[]), crowd)
    before = collect(engine, steps=3)
    assert before.keys() == {100, 101}
    engine.abort([100, 103, 4_000_000_000])  # executing, waiting, unknown
    engine.abort([103])
    after = collect(engine)
    for ticket in (100, 103, 4_000_000_000):
        assert aborts(after[ticket]) == [True]
    assert tokens_of(before)[100] == undisturbed[100][:3]
    assert tokens_of(before)[101] + tokens_of(after)[101] == undisturbed[101]
    assert tokens_of(after)[102] == undisturbed[102]
    engine.abort([100])
    assert not engine.idle
    assert aborts(collect(engine)[100]) == [True]


def test_drained_engine_reports_every_end_and_is_idle(make_model: MakeModel) -> None:
    engine = queued(
        engine_of(make_model(), slots=3), [dataclasses.replace(one, max_new_tokens=20) for one in requests(7)]
    )
    collect(engine, steps=2)
    engine.drain()
    assert (engine.executing, engine.pending, engine.idle) == (0, 0, False)
    rows = collect(engine)
    assert rows.keys() == set(range(100, 107))
    assert all(aborts(part) == [True] for part in rows.values())
    assert len(engine.step()) == 0


def test_many_ends_are_reported_over_several_steps(make_model: MakeModel) -> None:
    engine = queued(engine_of(make_model(), slots=3), requests(3))
    engine.abort(range(10_000, 10_000 + MAX_ROWS))
    first = engine.step()
    assert len(first) == MAX_ROWS
    reported = set(first.tickets.tolist())
    assert {100, 101, 102} <= reported
    assert reported | collect(engine).keys() == {100, 101, 102, *range(10_000, 10_000 + MAX_ROWS)}


BAD = {
    "too long": {"max_new_tokens": 126},
    "empty": {"prompt": []},
    "vocabulary of 96": {"prompt": [1, 96]},
    "outside of the vocabulary": {"prefix": [-1]},
    "already": {"prefix": [1] * 9, "max_new_tokens": 9},
    "stop token": {"prefix": [1, 95]},
    "32-bit": {"ticket": 2**32},
    "temperature": {"temperature": float("nan")},
    "outside": {"sampling": Sampling(logit_bias=((95 * 9, 1.0),))},
    "no grammars": {"sampling": Sampling(grammar=Grammar(kind="ebnf", text="x"))},
}


@pytest.mark.parametrize("what", BAD)
def test_unservable_request_is_refused_with_its_batch(make_model: MakeModel, what: str) -> None:
    engine = engine_of(make_model())
    good = Assignment(ticket=1, prompt=[1, 2, 3], seed=0, max_new_tokens=9)
    bad = dataclasses.replace(good, **{"ticket": 2, **BAD[what]})
    with pytest.raises(CannotServe, match="raise max_tokens" if what == "too long" else what) as refusal:
        engine.add([good, bad])
    assert refusal.value.ticket == bad.ticket
    assert engine.idle
    engine.add([good])
    with pytest.raises(CannotServe, match="served already"):
        engine.add([good])
    assert len(collect(engine)[1]) > 0


def test_prefix_with_an_ignored_stop_token_continues(make_model: MakeModel) -> None:
    engine, sampling = engine_of(make_model()), Sampling(ignore_eos=True)
    engine.add([Assignment(1, [1, 2, 3], seed=0, max_new_tokens=9, prefix=[1, 95], sampling=sampling)])
    assert len(collect(engine)[1]) == 7


def test_prefix_ending_in_its_stop_token_is_finished(make_model: MakeModel) -> None:
    engine, own = engine_of(make_model()), Sampling(ignore_eos=True, stop_token_ids=(7,))
    with pytest.raises(CannotServe, match="stop token"):
        engine.add([Assignment(1, [1, 2, 3], seed=0, max_new_tokens=9, prefix=[1, 7], sampling=own)])


def test_request_that_fills_its_slot_is_served(make_model: MakeModel) -> None:
    model = make_model()
    engine = BuiltinEngine(model, EngineSize(slots=2, max_tokens=37), eos_token_ids=[])
    engine.add([Assignment(ticket=t, prompt=[4] * 7, seed=t, max_new_tokens=30) for t in (1, 2, 3)])
    assert [len(rows) for rows in collect(engine).values()] == [30, 30, 30]


def test_full_queue_refuses_and_keeps_its_requests(make_model: MakeModel) -> None:
    engine = engine_of(make_model(), slots=2, max_pending=3)
    crowd = requests(5)
    engine.add(crowd[:3])
    with pytest.raises(EngineFull, match="3 fit"):
        engine.add(crowd[3:])
    assert engine.pending == 3
    assert collect(engine).keys() == {100, 101, 102}


def test_new_weights_are_exact_and_never_within_requests(
    make_model: MakeModel,
) -> None:
    trained = make_model(seed=5)
    specs = weight_layout(trained)
    image = bytearray(image_bytes(specs))
    write_weights(trained, memoryview(image))
    engine = queued(engine_of(make_model(seed=0)), requests(3))
    with pytest.raises(EngineBusy, match="drain"):
        engine.load_weights(memoryview(image), specs, 8)
    old = collect(engine)
    assert engine.weights_version == 0
    engine.load_weights(memoryview(image).toreadonly(), specs, 8)
    assert engine.weights_version == 8
    new = collect(queued(engine, requests(3)))
    assert new == collect(queued(engine_of(trained), requests(3)))
    assert new != old


def test_staged_weights_change_no_running_request(make_model: MakeModel) -> None:
    trained = make_model(seed=5)
    specs = weight_layout(trained)
    image = bytearray(image_bytes(specs))
    write_weights(trained, memoryview(image))
    undisturbed = collect(queued(engine_of(make_model(seed=0)), requests(3)))
    engine = queued(engine_of(make_model(seed=0)), requests(3))
    tokens = collect(engine, steps=2)
    engine.stage_weights(memoryview(image).toreadonly(), specs, 8)
    image[:] = bytes(len(image))  # the image is not needed from here on
    with pytest.raises(EngineBusy, match="drain"):
        engine.commit_weights()
    for ticket, rows in collect(engine).items():
        tokens.setdefault(ticket, []).extend(rows)
    assert tokens == undisturbed
    assert engine.weights_version == 0
    engine.commit_weights()
    assert engine.weights_version == 8
    assert collect(queued(engine, requests(3))) == collect(queued(engine_of(trained), requests(3)))


def test_broken_weights_are_named_and_sound_ones_recover(make_model: MakeModel) -> None:
    broken, sound = make_model(), make_model()
    with torch.no_grad():
        broken.model.layers[0].self_attn.v_proj.weight.fill_(torch.nan)
    engine = queued(engine_of(broken, weights_version=6), requests(3))
    with pytest.raises(BrokenWeights, match="version 6"):
        engine.step()
    engine.drain()
    specs = weight_layout(sound)
    image = bytearray(image_bytes(specs))
    write_weights(sound, memoryview(image))
    collect(engine)
    engine.load_weights(memoryview(image), specs, 7)
    assert collect(queued(engine, requests(3))) == collect(queued(engine_of(sound), requests(3)))


@pytest.mark.parametrize("steps", [0, 1, 3, 9])
def test_kept_requests_continue_under_newer_weights(make_model: MakeModel, steps: int) -> None:
    trained = make_model(seed=5)
    specs = weight_layout(trained)
    image = bytearray(image_bytes(specs))
    write_weights(trained, memoryview(image))
    asked = requests(7)  # more than the slots, so some wait
    engine = queued(engine_of(make_model(seed=0)), asked)
    before = tokens_of(collect(engine, steps=steps))
    over = {ticket for ticket, made in before.items() if made[-1] == 95}
    over |= {one.ticket for one in asked if len(before.get(one.ticket, [])) == one.max_new_tokens}
    engine.stage_weights(memoryview(image), specs, 8)
    kept = engine.commit_weights(keep=True)
    assert sorted(kept) == [one.ticket for one in asked if one.ticket not in over]
    assert (engine.executing, engine.weights_version) == (0, 8)
    rest = [
        dataclasses.replace(one, prefix=before.get(one.ticket, [])) for one in asked if one.ticket in kept
    ]
    order = {ticket: place for place, ticket in enumerate(kept)}
    rest.sort(key=lambda one: order[one.ticket])
    assert collect(engine) == collect(queued(engine_of(trained), rest))
    assert tokens_of(collect(queued(engine_of(make_model(seed=0)), rest))) != {}


def test_two_weight_changes_within_a_response_are_exact(make_model: MakeModel) -> None:
    models = [make_model(seed=seed) for seed in (0, 5, 6)]
    specs = weight_layout(models[0])
    asked = Assignment(ticket=1, prompt=[3, 4, 5], seed=9, max_new_tokens=12, temperature=0.0)
    engine = queued(engine_of(models[0], eos=()), [asked])
    made = tokens_of(collect(engine, steps=4))[1]
    for version, model in enumerate(models[1:], 1):
        image = bytearray(image_bytes(specs))
        write_weights(model, memoryview(image))
        engine.stage_weights(memoryview(image), specs, version)
        assert engine.commit_weights(keep=True) == [1]
        alone = queued(engine_of(model, eos=()), [dataclasses.replace(asked, prefix=made)])
        made = made + (more := tokens_of(collect(engine, steps=4))[1])
        assert more == tokens_of(collect(alone, steps=4))[1]
    assert (len(made), engine.idle) == (12, True)

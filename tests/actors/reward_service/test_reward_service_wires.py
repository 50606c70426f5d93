"""Translation of the wires of slime, OpenRLHF, verl and ROLL to items and from scores."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from gleaner.actors.gateway.ask import BadAsk
from gleaner.actors.gateway.calls import read
from gleaner.actors.reward.entries import Entry, Message
from gleaner.actors.reward.verifiers import http_wires
from gleaner.actors.reward_service import wires
from gleaner.actors.reward_service.asking import QueueFull, Scored, TooLong, UnknownResult
from gleaner.actors.reward_service.client_batches import MOST_ITEMS, ClientBatches
from gleaner.actors.reward_service.given_problems import MAX_RESPONSE_BYTES, entry_of, response_of, task_of
from gleaner.actors.reward_service.task_results import KEPT_S, SubmittedTask, TaskResults

ITEM: dict[str, Any] = {
    "prompt": "1+1?", "messages": [], "response": "It is 2", "answer": "2", "info": {"level": 1},
}  # fmt: skip
SCORED = Scored(0.5, "ok", "half")


def sent(style: str) -> bytes:
    """The body that our own client of this wire sends."""
    return json.dumps(http_wires.body(style, ITEM, "sums", 7.0)).encode()


def test_slime_sample_becomes_problem_and_response() -> None:
    entry, response = wires.of_slime(read(sent("slime"), wires.SlimeBody))
    assert (entry.question, entry.answer, response) == ("1+1?", "2", "It is 2")
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    body = wires.SlimeBody(prompt=messages, response="r", label=3, info={"tests": ["t"], "more": 1})
    entry, _ = wires.of_slime(body)
    assert entry == Entry(
        question="u", messages=(Message("system", "s"), Message("user", "u")), answer=3, tests=("t",),
        info={"more": 1},
    )  # fmt: skip


def test_slime_answer_is_number_or_object() -> None:
    assert wires.to_slime(SCORED, "number") == 0.5
    assert wires.to_slime(SCORED, "object") == wires.ScoreAnswer(score=0.5, status="ok", detail="half")


def test_openrlhf_response_is_what_follows_the_prompt() -> None:
    ((entry, response),) = wires.of_openrlhf(read(sent("openrlhf"), wires.OpenRlhfBody))
    assert (entry.question, entry.answer, response) == ("1+1?", "2", "It is 2")
    body = wires.OpenRlhfBody(query=["<s>a?b", "c?a?d"], prompts=["a?", "c?"])
    assert [response for _, response in wires.of_openrlhf(body)] == ["b", "a?d"]
    answer = wires.to_openrlhf([SCORED, Scored(0.0, "timeout")])
    assert answer.rewards == answer.scores == [0.5, 0.0]
    assert answer.extra_logs == {"status_ok": [1.0, 0.0]}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"query": [], "prompts": []}, "query"),
        ({"query": ["a"], "prompts": []}, "prompts"),
        ({"query": ["a"], "prompts": ["a"], "labels": []}, "labels"),
        ({"query": ["ab"], "prompts": ["c"]}, "query"),
        ({"query": ["a"] * (wires.MAX_ITEMS + 1), "prompts": []}, "query"),
    ],
)
def test_openrlhf_lists_that_do_not_match_are_refused(body: dict[str, Any], field: str) -> None:
    with pytest.raises(BadAsk) as refused:
        wires.of_openrlhf(wires.OpenRlhfBody(**body))
    assert refused.value.field == field


def test_verl_arguments_become_problem_with_prompt_of_extra_info() -> None:
    body = wires.VerlBody(solution_str="r", ground_truth="2", extra_info={"question": "q", "index": 3})
    entry, response = wires.of_verl(body)
    assert (entry.question, entry.answer, response) == ("q", "2", "r")
    assert entry.info["index"] == 3
    bare, _ = wires.of_verl(wires.VerlBody(solution_str="r"))
    assert bare == Entry(question="")


def test_roll_task_becomes_problem_with_its_batch() -> None:
    body = read(sent("roll"), wires.RollBody)
    entry, response = wires.of_roll(body)
    assert (entry.question, entry.answer, response) == ("1+1?", "2", "It is 2")
    assert entry.info == {"level": 1}
    assert (body.reward_manager, body.timeout, wires.batch_of_roll(body)) == ("sums", 7.0, "sums/0")
    assert wires.batch_of_roll(wires.RollBody(response="r")) == ""


def test_answers_are_read_by_our_clients_of_each_wire() -> None:
    answers = {
        "slime": wires.to_slime(SCORED, "object"),
        "openrlhf": wires.to_openrlhf([SCORED]),
        "roll": wires.to_roll("id", "sums", SCORED, 1.0, 0.5),
    }
    for style, answer in answers.items():
        assert http_wires.read(style, msgspec.json.encode(answer)).score == 0.5, style


def test_task_is_named_by_parameter_then_field_then_alone() -> None:
    assert task_of(["a", "b"], "b", "a") == "b"
    assert task_of(["a", "b"], "", "a") == "a"
    assert task_of(["a"], "", "unknown") == "a"
    for names, asked in ((["a", "b"], ""), (["a", "b"], "c"), (["a"], "c")):
        with pytest.raises(BadAsk, match=r"there are a"):
            task_of(names, asked, "unknown")


def test_prompt_of_a_wrong_type_is_refused_by_name() -> None:
    for prompt in (3, {"role": "user"}, [{"role": "user"}], ["text"], "  "):
        with pytest.raises(BadAsk) as refused:
            entry_of(prompt, None)
        assert refused.value.field == "prompt", prompt


def test_response_of_more_than_a_mebibyte_is_too_long() -> None:
    assert response_of("a" * MAX_RESPONSE_BYTES, "response")
    with pytest.raises(TooLong, match="at most 1048576"):
        response_of("é" * (MAX_RESPONSE_BYTES // 2 + 1), "response")


def test_batch_ends_with_its_last_open_item_and_is_bounded() -> None:
    batches = ClientBatches()
    first, second = batches.arrive("k"), batches.arrive("k")
    assert first == second != batches.arrive("other")
    assert not batches.left(first)
    assert batches.left(first)
    later = [batches.arrive("k") for _ in range(MOST_ITEMS + 1)]
    names = {batch.name for batch in later}
    assert len(names) == 2
    assert first.name not in names
    assert [batches.left(batch) for batch in later].count(True) == 2
    assert len(batches) == 1


async def test_results_are_forgotten_when_old_or_at_the_limit() -> None:
    results, loop = TaskResults(most=2), asyncio.get_running_loop()

    def task(began_s: float) -> SubmittedTask:
        return SubmittedTask("sums", loop.create_future(), began_s, 0.0)

    for name in ("a", "b"):
        results.room(0.0)
        results.add(name, task(0.0))
    with pytest.raises(QueueFull):
        results.room(0.0)
    results.get("b").done.set_result(SCORED)
    results.room(1.0)
    with pytest.raises(UnknownResult):
        results.get("b")
    results.get("a").done.set_result(SCORED)
    results.room(KEPT_S)
    assert len(results) == 1
    results.room(KEPT_S + 1.0)
    assert len(results) == 0

"""SGLang's protocol byte for byte: requests of real clients, answers as by SGLang."""

from pathlib import Path

import msgspec
import pytest

from gleaner.actors.engine.builtin_server.active_request import ActiveRequest, aborted, reason_of
from gleaner.actors.engine.builtin_server.answers import Answers
from gleaner.actors.engine.builtin_server.request_parser import Engine, asked_of
from gleaner.actors.engine.builtin_server.wire import GenerateBody, PauseBody, UpdateBody
from gleaner.actors.protocol.sampling_params import Sampling
from gleaner.actors.reward.prompts import Prompts


@pytest.fixture
def engine(folder: Path) -> Engine:
    names = iter("abcd")
    return Engine(99, 512, frozenset({4}), Prompts(folder), lambda: 77, lambda: next(names))


def body(raw: str) -> GenerateBody:
    return msgspec.json.decode(raw, type=GenerateBody)


def test_slime_s_request_is_understood(engine: Engine) -> None:
    raw = """{"sampling_params": {"temperature": 0.5, "top_p": 0.9, "top_k": -1, "max_new_tokens": 100,
        "stop": null, "stop_token_ids": null, "skip_special_tokens": false, "no_stop_trim": true,
        "spaces_between_special_tokens": false, "sampling_seed": 1234}, "return_logprob": true,
        "input_ids": [1, 2, 3], "stream": true}"""
    (asked,), batch = asked_of(body(raw), engine)
    assert (batch, asked.rid, list(asked.prompt), list(asked.prefix)) == (False, "a", [1, 2, 3], [])
    assert (asked.limit, asked.seed, asked.temperature, asked.stops) == (100, 1234, 0.5, frozenset({4}))
    assert asked.sampling == Sampling(top_p=0.9)
    assert (asked.logprobs, asked.keep_stop, asked.skip_special) == (True, True, False)


def test_roll_s_request_is_understood(engine: Engine) -> None:
    raw = """{"rid": "r-1", "input_ids": [5], "return_logprob": true, "sampling_params": {"temperature": 0.0,
        "min_new_tokens": 2, "max_new_tokens": 3, "stop_token_ids": [9], "ignore_eos": true, "n": 1}}"""
    (asked,), _ = asked_of(body(raw), engine)
    assert (asked.rid, asked.seed, asked.stops) == ("r-1", 77, frozenset({9}))
    assert asked.sampling == Sampling(min_new_tokens=2, ignore_eos=True, stop_token_ids=(9,))


def test_routing_fields_are_accepted_and_change_nothing(engine: Engine) -> None:
    plain = '{"input_ids": [[1], [2, 3]], "response_start": [1, 1]'
    more = """, "routing_key": "s", "priority": 1, "extra_key": "wv3", "cache_salt": "x", "session_id": "s",
        "custom_labels": {"a": "b"}, "kv_hints": {"a": 1}, "bootstrap_room": null, "lora_path": null}"""
    for raw in (plain + "}", plain + more):
        asked, batch = asked_of(body(raw), engine)
        assert batch
        assert [(list(one.prompt), list(one.prefix)) for one in asked] == [([1], []), ([2], [3])]
        assert [one.limit for one in asked] == [128, 128]


def test_orders_have_the_defaults_of_sglang() -> None:
    assert msgspec.json.decode("{}", type=PauseBody).mode == "abort"
    raw = """{"model_path": "/w", "load_format": "auto", "weight_version": "7", "is_async": false,
        "abort_all_requests": false, "torch_empty_cache": false, "keep_pause": false, "token_step": 0,
        "recapture_cuda_graph": false, "flush_cache": true, "manifest": null}"""
    order = msgspec.json.decode(raw, type=UpdateBody)
    assert (order.model_path, order.weight_version, order.abort_all_requests) == ("/w", "7", False)
    assert msgspec.json.decode('{"model_path": "/w"}', type=UpdateBody) == UpdateBody("/w")


def test_answer_is_written_as_by_sglang(engine: Engine) -> None:
    raw = """{"input_ids": [40, 41], "rid": "r", "return_logprob": true, "sampling_params":
        {"max_new_tokens": 3, "sampling_seed": 1}}"""
    (asked,), _ = asked_of(body(raw), engine)
    answers, running = Answers(engine.prompts), ActiveRequest(asked, began_s=1.0)
    letter = engine.prompts.encode_text("ab")

    def written() -> str:
        return msgspec.json.encode(answers.answer(running, "v1")).decode()

    running.take(letter[0], -0.5, "v1", 1.5)
    assert written() == (
        f'{{"text":"a","output_ids":[{letter[0]}],"meta_info":{{"id":"r","finish_reason":null,"prompt_tokens":2,'
        '"weight_version":"v1","num_retractions":0,"completion_tokens":1,"cached_tokens":0,'
        f'"reasoning_tokens":0,"input_token_logprobs":[],"output_token_logprobs":[[-0.5,{letter[0]},null]],'
        '"output_token_logprobs_length":1}}'
    )
    running.take(letter[1], -0.25, "v2", 1.5)
    running.take(4, -2.0, "v2", 1.5)
    running.end(reason_of(running, 4), 3.0)
    assert written() == (
        f'{{"text":"ab","output_ids":[{letter[0]},{letter[1]},4],"meta_info":{{"id":"r",'
        '"finish_reason":{"type":"stop","matched":4},"prompt_tokens":2,"weight_version":"v2",'
        '"num_retractions":0,"completion_tokens":3,"cached_tokens":0,"reasoning_tokens":0,'
        f'"input_token_logprobs":[],"output_token_logprobs":[[-0.5,{letter[0]},null],'
        f'[-0.25,{letter[1]},null],[-2.0,4,null]],"output_token_logprobs_length":3,"weight_versions":'
        '[{"version":"v1","start":0,"end":1},{"version":"v2","start":1,"end":3}],"e2e_latency":2.0}}'
    )


def test_answer_without_tokens_has_empty_log_probs(engine: Engine) -> None:
    (asked,), _ = asked_of(body('{"text": "a", "rid": "r", "return_logprob": true}'), engine)
    running = ActiveRequest(asked, began_s=0.0)
    running.end(aborted("it was aborted"), 0.5)
    assert msgspec.json.encode(Answers(engine.prompts).answer(running, "v1")).decode() == (
        '{"text":"","output_ids":[],"meta_info":{"id":"r","finish_reason":{"type":"abort","message":'
        '"it was aborted"},"prompt_tokens":1,"weight_version":"v1","num_retractions":0,"completion_tokens":0,'
        '"cached_tokens":0,"reasoning_tokens":0,"input_token_logprobs":[],"output_token_logprobs":[],'
        '"output_token_logprobs_length":0,"weight_versions":[],"e2e_latency":0.5}}'
    )

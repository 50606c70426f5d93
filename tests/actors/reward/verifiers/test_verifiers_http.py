"""HTTP rewards: a service scores responses; its failures become our statuses."""

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from reward_services import Answer, Service, closes, drips, half, replies, service

from gleaner.actors.reward.entries import Entry, Message
from gleaner.actors.reward.verdicts import Judgement
from gleaner.actors.reward.verifiers import http_rewards, service_verifier
from gleaner.actors.reward.verifiers.port import BadVerifier, Verifier, VerifierSpec
from gleaner.actors.reward.verifiers.registry import make

FOUR = Entry(question="2+2?", answer="4", info={"level": 3})
CHAT = Entry(question="2+2?", messages=(Message("system", "Be short."), Message("user", "2+2?")), answer="4")


@pytest.fixture
def served() -> Iterator[Service]:
    with service() as found:
        yield found


Made = Callable[..., Verifier]


@pytest.fixture
def made(served: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    for name in ("FIRST_WAIT_S", "LONGEST_WAIT_S"):
        monkeypatch.setattr(service_verifier, name, 0.001)
    monkeypatch.setattr(http_rewards, "POLL_S", 0.001)
    all_made: list[Verifier] = []

    def one(**params: object) -> Verifier:
        spec = VerifierSpec(name="http", task="sums", params={"url": served.url, **params})
        all_made.append(make(spec))
        return all_made[-1]

    yield one
    for verifier in all_made:
        verifier.close()


def judged(verifier: Verifier, *responses: str, entry: Entry = FOUR) -> list[Judgement]:
    return verifier.score_all([(entry, response) for response in responses or ("It is 4.",)])


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (0.5, Judgement(0.5)),
        (True, Judgement(1.0)),
        ({"score": 1, "format": 0.25, "why": "right"}, Judgement(1.0, parts={"format": 0.25})),
        ({"reward": -1.5}, Judgement(-1.5, parts={"reward": -1.5})),
    ],
)
def test_own_wire_sends_the_problem_and_reads_a_score(
    made: Made, served: Service, answer: object, expected: Judgement
) -> None:
    served.answers = [replies(answer)]
    assert judged(made()) == [expected]
    (call,) = served.calls
    assert (call.method, call.path) == ("POST", "/score")
    assert call.body == {
        "prompt": "2+2?",
        "messages": [],
        "response": "It is 4.",
        "answer": "4",
        "info": {"level": 3},
    }


def test_slime_services_get_slime_requests(made: Made, served: Service) -> None:
    served.answers = [replies(1)]
    assert judged(made(style="slime")) == [Judgement(1.0)]
    assert served.calls[0].body == {"prompt": "2+2?", "response": "It is 4.", "label": "4"}
    judged(made(style="slime"), entry=CHAT)
    assert served.calls[1].body["prompt"][0] == {"role": "system", "content": "Be short."}


def test_openrlhf_services_get_lists_of_one(made: Made, served: Service) -> None:
    served.answers = [replies({"rewards": [0.5], "scores": [0.75], "extra_logs": {"length": [9]}})]
    parts = {"length": 9.0, "scores": 0.75}
    assert judged(made(style="openrlhf"), entry=CHAT) == [Judgement(0.5, parts=parts)]
    prompt = "Be short.\n2+2?"
    assert served.calls[0].body == {"query": [f"{prompt}It is 4."], "prompts": [prompt], "labels": ["4"]}


def test_roll_services_are_polled_until_done(made: Made, served: Service) -> None:
    served.answers = [
        replies({"errcode": 0, "errmsg": "", "reward_request_id": "r-7"}),
        replies({"errcode": 1}),
        replies({"errcode": 1}),
        replies({"errcode": 0, "reward_score": 0.25, "dimention_reward_score": {}}),
    ]
    url = served.url.removesuffix("/score")
    assert judged(made(style="roll", url=f"{url}/")) == [Judgement(0.25)]
    submit, *looks = served.calls
    assert (submit.method, submit.path) == ("POST", "/v1/submit_task")
    assert submit.body["reward_info"] == {"answer": "4", "info": {"level": 3}}
    assert submit.body["response"] == "It is 4."
    assert [(one.method, one.path, one.body) for one in looks] == [
        ("GET", "/v1/task_result", {"reward_request_id": "r-7"})
    ] * 3


@pytest.mark.parametrize(
    "fault",
    [
        replies({}, 500),
        replies(b"busy", 503),
        replies({}, 429, Retry_After="0"),
        replies({}, 408),
        closes,
        half,
    ],
    ids=["500", "503", "429", "408", "closes", "half"],
)
def test_temporary_failure_is_retried(made: Made, served: Service, fault: Answer) -> None:
    served.answers = [fault, fault, replies(1)]
    assert judged(made()) == [Judgement(1.0)]
    assert len(served.calls) == 3


def test_permanent_failure_is_unavailable_with_the_reason(
    made: Made, served: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_rewards, "MAX_TRIES", 3)
    served.answers = [replies(b"no GPU is left", 500)]
    (found,) = judged(made())
    assert (found.score, found.status) == (0.0, "unavailable")
    assert "answered 500 'no GPU is left', 3 times" in found.detail
    assert len(served.calls) == 3


def test_absent_service_is_unavailable(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_rewards, "MAX_TRIES", 2)
    with socket.socket() as bound:  # nothing listens at this port
        bound.bind(("127.0.0.1", 0))
        (found,) = judged(made(url=f"http://127.0.0.1:{bound.getsockname()[1]}"))
    assert found.status == "unavailable"
    assert "2 times" in found.detail


def holds(served: Service) -> Answer:
    def answer(handler: Any) -> None:
        served.held.wait(60)
        handler.close_connection = True

    return answer


def test_silent_service_is_unavailable_at_the_deadline(made: Made, served: Service) -> None:
    served.answers = [replies({}, 500), holds(served)]
    (found,) = judged(made(deadline_s=0.2))
    assert found.status == "unavailable"
    assert "no score within 0.2 s; the last of 1 tries: answered 500" in found.detail


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (replies(b"<html>busy</html>"), "no JSON: '<html>busy</html>'"),
        (replies(b"[" * 100_000), "no JSON"),
        (replies(b""), "no JSON"),
        (replies(b"NaN"), "is nan"),
        (replies({"score": None}), "no number but None"),
        (replies({"mark": 1}), "without 'score', with mark"),
        (replies([1]), "no number but list"),
        (replies("1"), "no number but str"),
        (replies({"detail": "no such task"}, 404), 'answered 404 \'{"detail": "no such task"}\''),
        (replies({}, 302, Location="http://127.0.0.1:1/"), "redirects are not followed"),
        (drips, "answered more than 1048576 bytes"),
        (replies(b"\x1f\x8b" * 50, 200, Content_Encoding="gzip"), "no JSON"),
    ],
    ids=["html", "nested", "empty", "nan", "none", "mark", "list", "text", "404", "302", "drips", "gzip"],
)
def test_invalid_score_is_a_verifier_failure_without_retry(
    made: Made, served: Service, answer: Answer, words: str
) -> None:
    served.answers = [answer]
    (found,) = judged(made())
    assert (found.score, found.status) == (0.0, "verifier_failed")
    assert words in found.detail
    assert len(served.calls) == 1


@pytest.mark.parametrize(
    ("style", "answer", "words"),
    [
        ("openrlhf", {"rewards": [1.0, 0.0]}, "2 rewards for 1 response"),
        ("openrlhf", {"score": 1}, "no 'rewards'"),
        ("openrlhf", {"rewards": []}, "0 rewards"),
        ("roll", {"errcode": 7, "errmsg": "full"}, "it took no task"),
        ("roll", {"errcode": 0}, "no reward_request_id"),
    ],
)
def test_answers_of_other_wires_are_read_strictly(
    made: Made, served: Service, style: str, answer: object, words: str
) -> None:
    served.answers = [replies(answer)]
    (found,) = judged(made(style=style))
    assert found.status == "verifier_failed"
    assert words in found.detail


def test_failed_roll_task_is_a_verifier_failure(made: Made, served: Service) -> None:
    served.answers = [
        replies({"errcode": 0, "reward_request_id": 7}),
        replies({"errcode": 3, "errmsg": "died"}),
    ]
    (found,) = judged(made(style="roll"))
    assert found.status == "verifier_failed"
    assert "its task failed" in found.detail


def test_concurrent_calls_are_limited_and_keep_their_order(made: Made, served: Service) -> None:
    served.answers = [lambda handler: replies(int(handler.body["response"]))(handler)]
    found = judged(made(max_concurrent=2), *[str(number) for number in range(12)])
    assert [one.score for one in found] == [float(number) for number in range(12)]
    assert served.most_busy <= 2


def test_key_comes_from_the_environment_and_stays_secret(
    made: Made, served: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REWARD_KEY", "Bearer abc-123")
    served.answers = [replies(b"wrong key: abc-123", 401)]
    (found,) = judged(made(headers_env="REWARD_KEY"))
    assert served.calls[0].headers["Authorization"] == "Bearer abc-123"
    assert "abc-123" not in found.detail
    assert "answered 401" in found.detail
    with pytest.raises(BadVerifier, match="no variable NO_SUCH_KEY"):
        made(headers_env="NO_SUCH_KEY").open()
    monkeypatch.setenv("REWARD_KEY", "Bearer a\r\nHost: b")
    with pytest.raises(BadVerifier, match="characters that no header can have") as refused:
        made(headers_env="REWARD_KEY").open()
    assert "Bearer" not in str(refused.value)


def test_job_is_named_to_a_shared_service(served: Service, made: Made) -> None:
    served.answers = [replies(1), replies(1)]
    judged(made(job="code"))
    judged(made())
    assert [call.headers.get("X-Gleaner-Job") for call in served.calls] == ["code", None]


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"url": ""}, "reward.http.url is empty"),
        ({"url": "ftp://host/x"}, "url"),
        ({"url": "http://user:password@host/"}, "url"),
        ({"style": "grpc"}, "style"),
        ({"max_concurrent": 0}, "max_concurrent"),
        ({"header": "x"}, "header"),
        ({"job": "a job"}, "job"),
    ],
)
def test_unusable_settings_are_refused(made: Made, params: dict[str, object], words: str) -> None:
    with pytest.raises(BadVerifier, match=words):
        made(**params)

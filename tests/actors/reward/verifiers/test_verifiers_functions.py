"""Reward functions of the user in the sandbox; their failures never become a response's score."""

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gleaner.actors.reward.entries import Entry, Message
from gleaner.actors.reward.sandbox.detection import NoSandbox, detect
from gleaner.actors.reward.sandbox.port import Isolation
from gleaner.actors.reward.verdicts import Judgement
from gleaner.actors.reward.verifiers.functions import FunctionVerifier
from gleaner.actors.reward.verifiers.port import BadVerifier, Tries, Verifier, VerifierSpec
from gleaner.actors.reward.verifiers.registry import make
from gleaner.actors.reward.verifiers.trusted_functions import TrustedFunction
from gleaner.configs.schema import Function

EXAMPLE = Path(__file__).parents[4] / "docs" / "examples" / "own_reward"
FOUR = Entry(question="2+2?", answer="4")
MODES = [mode.value for mode in Isolation]

FUNCTIONS = """
import json
import os
import socket
import sys

import beside

CALLS = []


def score(response, answer):
    CALLS.append(response)
    match response:
        case "raises":
            return beside.raises()
        case "leaves":
            sys.exit(3)
        case "dies":
            os._exit(3)
        case "hangs":
            while True:
                pass
        case "sleeps":
            import time
            time.sleep(1000)
        case "fills":
            return len([bytearray(2**26) for _ in range(1000)])
        case "none" | "nan":
            return {"none": None, "nan": float("nan")}[response]
        case "calls":
            return len(CALLS)
        case "connects":
            return socket.create_connection(("127.0.0.1", 9)).fileno()
        case "reads":
            return len(open(os.path.join(os.path.dirname(__file__), "secret.txt")).read())
        case "environment":
            return {"score": len(os.environ), "keys": "GLEANER_SECRET" in os.environ}
        case "prints":
            print("seen:", response)
    return {"score": answer in response, "length": len(response)}


async def waits(prompt, response, answer, info):
    import asyncio

    await asyncio.sleep(0)
    return float(answer in response)


def size_of(response):
    return len(open(response, "rb").read())


def evaluates(response):
    return eval(response)


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(solution_str == ground_truth), "acc": data_source == "sums"}


def listed(prompts, completions, level, **columns):
    return [level[0] / 10 for _ in completions]


async def custom_rm(args, sample):
    return float(sample.label in sample.response)


def strange(x, y):
    return 0.0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rewards_here.py").write_text(FUNCTIONS)
    (tmp_path / "beside.py").write_text("def raises():\n    raise ValueError('no such thing')\n")
    (tmp_path / "secret.txt").write_text("key")
    (tmp_path / "broken_here.py").write_text("import json\nimport no_such_package\n")
    (tmp_path / "untidy_here.py").write_text("def score(response:\n")
    return tmp_path


Made = Callable[..., Verifier]


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    try:
        detect(request.param)
    except NoSandbox as problem:
        pytest.skip(str(problem))
    return str(request.param)


@pytest.fixture
def made(folder: Path) -> Iterator[Made]:
    all_made: list[Verifier] = []

    def one(call: str = "score", isolation: str = "auto", **params: object) -> Verifier:
        whole = call if ":" in call or not call else f"rewards_here:{call}"
        params = {"call": whole, "path": str(folder), **params}
        all_made.append(make(VerifierSpec(name="python", task="sums", params=params, isolation=isolation)))
        return all_made[-1]

    yield one
    for verifier in all_made:
        verifier.close()


def judged(verifier: Verifier, *responses: str, entry: Entry = FOUR) -> list[Judgement]:
    return verifier.score_all([(entry, response) for response in responses])


def test_function_scores_with_its_parts(made: Made, mode: str) -> None:
    found = judged(made(isolation=mode), "it is 4", "it is 5")
    assert [(one.score, one.status, one.parts) for one in found] == [
        (1.0, "ok", {"length": 7.0}),
        (0.0, "ok", {"length": 7.0}),
    ]


@pytest.mark.parametrize(
    ("response", "words"),
    [
        ("raises", "rewards_here:score raised ValueError: no such thing (beside.py:2)"),
        ("leaves", "raised SystemExit: 3 (rewards_here.py:"),
        ("dies", "its process ended"),
        ("none", "no number but None"),
        ("nan", "is nan"),
        ("connects", "no network in the sandbox"),
        ("reads", "reward.function.reads"),
    ],
)
def test_function_failure_has_no_score_and_names_its_place(
    made: Made, mode: str, response: str, words: str
) -> None:
    before, failed, after = judged(made(isolation=mode), "4", response, "4")
    assert failed.status == "verifier_failed"
    assert words in failed.detail
    assert before.score == after.score == 1.0


@pytest.mark.parametrize(
    ("response", "deadline_s", "status"),
    [("hangs", 0.5, "timeout"), ("sleeps", 0.5, "timeout"), ("fills", 60.0, "memory")],
)
def test_response_that_takes_too_long_scores_0(
    made: Made, response: str, deadline_s: float, status: str
) -> None:
    verifier = made(deadline_s=deadline_s)
    before, failed = judged(verifier, "4", response)
    (after,) = judged(verifier, "4")
    assert (failed.score, failed.status) == (0.0, status)
    assert before.score == after.score == 1.0


def test_responses_share_a_process_unless_functions_run_them(made: Made) -> None:
    assert [one.score for one in judged(made(), "calls", "calls")] == [1.0, 2.0]
    assert [one.score for one in judged(made(runs_responses=True), "calls", "calls")] == [1.0, 1.0]


def test_process_end_counts_against_the_response_it_runs(made: Made) -> None:
    found = judged(made("evaluates", runs_responses=True), "1 + 1", "__import__('os')._exit(0)", "3")
    assert [(one.score, one.status) for one in found] == [(2.0, "ok"), (0.0, "crashed"), (3.0, "ok")]


@pytest.mark.parametrize(
    "output", ['{"score":', '{"score":1e999}', '{"score":NaN}', '{"parts":{"a":"b"}}', "1.0"]
)
def test_sandbox_output_is_read_strictly(made: Made, output: str) -> None:
    frame = len(output).to_bytes(4, "little") + output.encode()
    forged = f"__import__('os').write(3, {frame!r}) + __import__('os')._exit(0)"
    (found,) = judged(made("evaluates", runs_responses=True), forged)
    assert (found.score, found.status) == (0.0, "crashed")
    assert "no result" in found.detail


def test_function_environment_holds_nothing_of_the_job(
    made: Made, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLEANER_SECRET", "key")
    (found,) = judged(made(isolation=mode), "environment")
    assert found.parts == {"keys": 0.0}


def test_only_named_files_are_readable(made: Made, mode: str) -> None:
    data, beside = EXAMPLE / "problems.jsonl", EXAMPLE / "job.toml"
    read, refused = judged(made("size_of", mode, reads=[str(data)]), str(data), str(beside))
    assert read == Judgement(float(data.stat().st_size))
    assert refused.status == "verifier_failed"


def test_functions_of_other_trainers_score(made: Made) -> None:
    entry = Entry(question="2+2?", answer="4", info={"data_source": "sums", "level": 3})
    for call, worth in (("waits", 1.0), ("compute_score", 1.0), ("listed", 0.3), ("custom_rm", 1.0)):
        assert [one.score for one in judged(made(call), "4", entry=entry)] == [worth], call


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"call": ""}, "reward.function.call is empty"),
        ({"call": "no_such_module_here:score"}, "No module named 'no_such_module_here'"),
        ({"call": "rewards_here:no_such_function"}, "has no attribute 'no_such_function'"),
        ({"call": "rewards_here:strange"}, "have no known form; expected one of"),
        ({"call": "broken_here:score"}, r"No module named 'no_such_package' \(broken_here.py:2\)"),
        ({"call": "untidy_here:score"}, "SyntaxError"),
        ({"style": "slim"}, "style"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"reads": ["no_such_file"]}, "no_such_file: no such file"),
        ({"call": "one two:three"}, "call"),
    ],
)
@pytest.mark.parametrize("trusted", [False, True])
def test_unusable_function_is_refused_before_the_first_score(
    made: Made, params: dict[str, object], words: str, trusted: bool
) -> None:
    if trusted and "reads" in params:
        pytest.skip("a trusted function reads what its user may")
    with pytest.raises(BadVerifier, match=words):
        made(trusted=trusted, **params).open()


def test_trusted_function_runs_in_this_process(made: Made) -> None:
    verifier = made(trusted=True)
    found = judged(verifier, "it is 4", "raises", "none", "reads")
    assert [one.status for one in found] == ["ok", "verifier_failed", "verifier_failed", "ok"]
    assert "no such thing (beside.py:2)" in found[1].detail
    assert found[0].parts == {"length": 7.0}
    assert sys.modules["rewards_here"].CALLS[-1] == "reads"
    del sys.modules["rewards_here"], sys.modules["beside"]


def test_trusted_function_that_waits_too_long_fails(made: Made, folder: Path) -> None:
    text = "async def score(response):\n    await asyncio.sleep(float(response))\n    return 1.0\n"
    (folder / "slow_here.py").write_text(f"import asyncio\n{text}")
    late, soon = judged(made("slow_here:score", trusted=True, deadline_s=0.05), "1000", "0")
    assert (late.status, soon.status) == ("verifier_failed", "ok")
    assert "no result within 0.05 s" in late.detail


@pytest.mark.parametrize("trusted", [False, True])
def test_responses_beyond_the_time_are_left_for_later(folder: Path, trusted: bool) -> None:
    times = itertools.count(0.0, 1.0)
    settings = Function(call="rewards_here:score", path=str(folder), deadline_s=1.5)
    verifier: Verifier
    if trusted:
        verifier = TrustedFunction(settings, clock=lambda: next(times))
    else:
        verifier = FunctionVerifier(settings, "auto", clock=lambda: next(times))
    found = judged(verifier, "4", "4", "4", "4", "4")
    verifier.close()
    assert [one.status for one in found] == ["ok", "ok", "ok", "overloaded", "overloaded"]
    for name in ("rewards_here", "beside"):
        sys.modules.pop(name, None)


def test_trial_shows_output_and_refusals_of_the_sandbox(made: Made, mode: str) -> None:
    verifier = made(isolation=mode)
    assert isinstance(verifier, Tries)
    assert verifier.try_one(FOUR, "prints").printed == "seen: prints\n"
    assert "secret.txt" in " ".join(verifier.try_one(FOUR, "reads").refused)
    assert "127.0.0.1" in " ".join(verifier.try_one(FOUR, "connects").refused)
    assert verifier.try_one(FOUR, "4").judgement.score == 1.0


def test_any_text_reaches_the_function_unchanged(made: Made) -> None:
    texts = ["", "\ud800", "\x00\n\u2028" * 10, "4" * 100_000]
    assert [one.parts["length"] for one in judged(made(), *texts)] == [float(len(one)) for one in texts]


def test_messages_reach_the_function(made: Made, folder: Path) -> None:
    (folder / "talks_here.py").write_text("def score(response, messages):\n    return len(messages)\n")
    entry = Entry(question="b", messages=(Message("system", "a"), Message("user", "b")))
    assert judged(made(call="talks_here:score"), "x", entry=entry)[0].score == 2.0


def test_example_function_scores_its_problems() -> None:
    verifier = make(
        VerifierSpec(name="python", task="sums", params={"call": "my_rewards:score", "path": str(EXAMPLE)})
    )
    right, wrong = judged(verifier, "So it is 4", "5", entry=FOUR)
    verifier.close()
    assert 0.5 < right.score < 1.0
    assert wrong.score == 0.0
    assert right.parts["right"] == 1.0


def test_worker_never_imports_an_untrusted_function(folder: Path) -> None:
    program = f"""
import sys
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.verifiers.port import VerifierSpec
from gleaner.actors.reward.verifiers.registry import make
params = {{"call": "rewards_here:score", "path": {str(folder)!r}}}
verifier = make(VerifierSpec(name="python", task="t", params=params))
assert verifier.score_all([(Entry(question="", answer="4"), "4")])[0].score == 1.0
verifier.close()
assert "rewards_here" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)

"""Settings of a judge: what is refused names file, key and remedy."""

from pathlib import Path

import pytest

from gleaner.actors.reward.task import spec_of
from gleaner.configs.load import ConfigError, load

JUDGE = """
[reward.judge]
url = "http://judge:8000/v1"
model = "m"
rubric = "rubric.txt"
"""
COLOCATED = "reward.judge.place=colocated"
ALONE = '[[task]]\nname = "sums"\ndata = "sums.jsonl"\nverifier = "judge"\n'
BESIDE = ALONE.replace("judge", "math") + "[task.judge]\nweight = 0.3\ngate = 1.0\n"


def written(folder: Path, text: str) -> Path:
    file = folder / "job.toml"
    file.write_text(text)
    return file


def test_rubric_file_is_relative_to_the_settings(tmp_path: Path) -> None:
    judge = load(written(tmp_path, ALONE + JUDGE)).reward.judge
    assert (judge.rubric, judge.votes, judge.scale) == (str(tmp_path / "rubric.txt"), 1, (0.0, 10.0))


def test_judge_beside_a_verifier_has_weight_and_gate(tmp_path: Path) -> None:
    (task,) = load(written(tmp_path, BESIDE + JUDGE)).task
    assert (task.judge.weight, task.judge.gate) == (0.3, 1.0)


@pytest.mark.parametrize(
    ("text", "sets", "words"),
    [
        (ALONE, [], "reward.judge.url: is empty: set it to the base URL"),
        (BESIDE, [], "reward.judge.url: is empty"),
        (ALONE, ["reward.judge.url=http://x/v1"], "reward.judge.model: is empty: set it to"),
        (
            ALONE,
            ["reward.judge.url=http://x/v1", "reward.judge.model=m"],
            "reward.judge.rubric: is empty: set",
        ),
        (JUDGE, ["reward.judge.rubric_text=x"], "reward.judge.rubric_text: expected nothing beside rubric"),
        (JUDGE, ["reward.judge.votes=0"], "reward.judge.votes: expected an integer ≥ 1 and ≤ 15, got 0"),
        (JUDGE, ["reward.judge.deadline_s=0"], "reward.judge.deadline_s: expected a number > 0, got 0"),
        (JUDGE, ["reward.judge.temperature=-1"], "reward.judge.temperature"),
        (JUDGE, ["reward.judge.scale=[5, 1]"], "reward.judge.scale: expected a lower number before a higher"),
        (
            JUDGE,
            ["reward.judge.replicas=['x']"],
            "reward.judge.replicas: expected a list, each a text that matches",
        ),
        (JUDGE, ["reward.judge.hedge_s=5"], "reward.judge.hedge_s: expected 0 without replicas"),
        (
            JUDGE,
            ["reward.judge.key=abc"],
            "reward.judge.key: unknown key; did you mean reward.judge.key_env?",
        ),
        (
            JUDGE,
            ["reward.workers=100"],
            "reward.judge.max_concurrent: expected at least 1 for each of 100 workers",
        ),
        (
            JUDGE,
            ["reward.judge.requests_per_minute=5", "reward.workers=2", "reward.judge.votes=3"],
            "reward.judge.requests_per_minute: expected 0 or at least 6",
        ),
        (
            ALONE + "params = { deadline_s = 90 }\n" + JUDGE,
            [],
            "expected at most reward.judge.deadline_s (60)",
        ),
        (ALONE, ["reward.judge.place=instances"], "reward.judge.model: is empty: set it to"),
        (ALONE, [COLOCATED], "reward.judge.colocated.model_path: is empty: set it to the folder"),
        (
            ALONE + "params = { votes = 2 }\n",
            [COLOCATED, "reward.judge.colocated.model_path=judge"],
            "reward.judge.colocated.reserve_mb: is 0: set it to the memory",
        ),
        (ALONE + JUDGE, [COLOCATED], 'url, replicas: expected none where place is "colocated"'),
        (
            ALONE,
            [COLOCATED, "reward.judge.colocated.listen=10.0.0.5:8901"],
            "key_env: expected a variable where colocated.listen is beyond loopback, got 10.0.0.5",
        ),
        (
            ALONE,
            ["reward.judge.colocated.listen=judge:1"],
            "reward.judge.colocated.listen: expected a text that matches",
        ),
        (BESIDE.replace("0.3", "0.0") + JUDGE, [], "weight: expected more than 0 beside a gate"),
        (BESIDE.replace('"math"', '"judge"') + JUDGE, [], "judge.weight: expected 0 where verifier"),
    ],
)
def test_unusable_judge_is_refused(tmp_path: Path, text: str, sets: list[str], words: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        load(file, sets)
    assert str(refused.value).startswith(f"{file}: ")
    assert words in str(refused.value)


def test_colocated_judge_is_called_where_the_job_serves_it(tmp_path: Path) -> None:
    own = ["reward.judge.colocated.model_path=judge", "reward.judge.colocated.reserve_mb=512"]
    config = load(written(tmp_path, ALONE), [COLOCATED, *own, "reward.judge.rubric_text=x"])
    params = spec_of(config.task[0], config).params
    assert (params["url"], params["model"]) == ("http://127.0.0.1:8901/v1", "judge")
    assert config.serves_judge
    assert config.reward.judge_s == 240.0, "workers have time for it"
    unused = load(written(tmp_path, ""), [COLOCATED, *own, "reward.judge.rubric_text=x"])
    assert not unused.serves_judge


def test_limits_are_shared_by_the_workers_of_all_hosts(tmp_path: Path) -> None:
    file = written(tmp_path, ALONE + JUDGE)
    config = load(file, ["reward.workers=2"])
    assert spec_of(config.task[0], config).params["workers"] == 2
    config = load(file, ["reward.workers=2", "reward.judge.workers=20"])
    assert spec_of(config.task[0], config).params["workers"] == 20
    with pytest.raises(ConfigError, match="at least 1 for each of 90 workers"):
        load(file, ["reward.judge.workers=90"])


def test_worker_has_time_for_a_judge_beside_its_verifier(tmp_path: Path) -> None:
    reward = load(written(tmp_path, BESIDE + JUDGE), ["reward.judge.deadline_s=45"]).reward
    assert reward.worker_s == 4 * (2 + 45)
    assert reward.problem_s == 4 * 2, "a judge has no part in a problem"
    assert load(None).reward.worker_s == 8


def test_worker_of_a_shared_job_has_no_more_time_for_a_problem() -> None:
    shared = load(
        "quickstart", ["reward.share.with=http://127.0.0.1:1", "reward.share.deadline_s=600"]
    ).reward
    assert (shared.worker_s, shared.problem_s) == (1200, 8)

"""Texts of simulated responses, and the calls that carry them to a reward service."""

import msgspec
import pytest

from gleaner.actors.reward import pipe
from gleaner.actors.reward.entries import Entry
from gleaner.configs.load import from_tree
from gleaner.sim.models.scored_texts import NotSimulated, response_of, text_of
from gleaner.sim.scoring_service import MOST_QUEUED, settings_of


def test_text_gives_its_response_back() -> None:
    item = pipe.ReadItem("heldout", 7, [0, 5, 4_294_967_295])
    text = text_of("words", item)
    assert text.task == "words"
    assert response_of(text) == pipe.ScoreItem("heldout", 7, [0, 5, 4_294_967_295])
    assert response_of(text_of("words", pipe.ReadItem("train", 0, []))).tokens == []


@pytest.mark.parametrize(
    ("answer", "response"),
    [("4", "1 2"), ({"split": "train"}, "1 2"), ({"split": "train", "index": 1}, "one two")],
)
def test_text_of_no_simulated_worker_is_refused(answer: object, response: str) -> None:
    entry = msgspec.json.encode(Entry(question="?", answer=answer))  # type: ignore[arg-type]
    with pytest.raises(NotSimulated):
        response_of(pipe.TextItem("words", entry, response))


def test_service_has_the_tasks_of_the_job_and_workers_of_its_own() -> None:
    config = from_tree({"reward": {"workers": 3, "share": {"with": "http://scores:8900"}}}, "test")
    own = settings_of(config)
    assert own.task == config.task
    assert own.reward.share.with_ == ""
    assert own.reward.jobs.max_queued == MOST_QUEUED

"""Scores of statuses: from the settings to the judgement, and never for a failure of ours."""

from collections.abc import Sequence

import msgspec
import pytest

from gleaner.actors.reward import pipe
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.pool import verdict_of
from gleaner.actors.reward.task import spec_of
from gleaner.actors.reward.verdicts import OK, OURS, PROGRAMS, Judgement
from gleaner.actors.reward.verifiers.port import BadVerifier, Trial, VerifierSpec
from gleaner.actors.reward.verifiers.registry import make
from gleaner.actors.reward.verifiers.status_scores import StatusScores
from gleaner.actors.reward.worker import _out
from gleaner.configs.load import ConfigError, from_tree
from gleaner.configs.schema import Scores

PROBLEM = Entry(question="?")


class Fixed:
    """A verifier whose judgements have the status that the response names."""

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass

    def check(self, entry: Entry) -> str:
        return ""

    def score_all(self, items: Sequence[tuple[Entry, str]]) -> list[Judgement]:
        return [Judgement(0.25 if status == OK else 0.0, status, "why") for _, status in items]

    def try_one(self, entry: Entry, response: str) -> Trial:
        return Trial(judgement=self.score_all([(entry, response)])[0], read="it")


def spec(**scores: float) -> VerifierSpec:
    return VerifierSpec(name="fixed", task="t", scores=scores)


def test_status_has_the_score_of_the_settings() -> None:
    verifier = StatusScores(Fixed(), spec(timeout=-1.0, compile_failed=-0.5))
    statuses = ["ok", "timeout", "compile_failed", "crashed", "lost"]
    found = verifier.score_all([(PROBLEM, status) for status in statuses])
    assert [(one.status, one.score) for one in found] == [
        ("ok", 0.25), ("timeout", -1.0), ("compile_failed", -0.5), ("crashed", 0.0), ("lost", 0.0),
    ]  # fmt: skip
    trial = verifier.try_one(PROBLEM, "timeout")
    assert (trial.judgement.score, trial.judgement.detail, trial.read) == (-1.0, "why", "it")


@pytest.mark.parametrize("status", sorted(PROGRAMS - {OK}))
def test_score_of_each_status_of_a_program_is_a_setting(status: str) -> None:
    config = from_tree({"reward": {"scores": {status: -0.5}}}, "job.toml")
    found = spec_of(config.task[0], config)
    assert found.scores == {status: -0.5}
    (judged,) = StatusScores(Fixed(), found).score_all([(PROBLEM, status)])
    verdict = verdict_of(pipe.answer(pipe.pack(_out(judged))[pipe.PREFIX.size :]))
    assert (verdict.score, verdict.status) == (-0.5, status)


@pytest.mark.parametrize("status", sorted(OURS))
def test_status_of_ours_is_refused_by_name(status: str) -> None:
    with pytest.raises(ConfigError, match=rf"reward\.scores\.{status}: no setting: .* never scores"):
        from_tree({"reward": {"scores": {status: 0.0}}}, "job.toml")
    with pytest.raises(BadVerifier, match="never scores"):
        StatusScores(Fixed(), spec(**{status: 1.0}))
    assert verdict_of(pipe.ScoreOut(1.0, status)).score is None


@pytest.mark.parametrize(
    ("scores", "words"),
    [({"ok": 1.0}, "no setting"), ({"timeouts": 1.0}, "timeouts: unknown key"),
     ({"timeout": float("nan")}, "timeout: expected"), ({"timeout": float("inf")}, "timeout: expected")],
)  # fmt: skip
def test_other_scores_are_refused(scores: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        from_tree({"reward": {"scores": scores}}, "job.toml")


def test_settings_know_all_statuses() -> None:
    assert set(Scores.__struct_fields__) == PROGRAMS - {OK}
    assert set(Scores.no_settings) == OURS | {OK}
    assert msgspec.to_builtins(Scores()) == dict.fromkeys(Scores.__struct_fields__, 0.0)
    assert not isinstance(make(VerifierSpec(name="math", task="t")), StatusScores)
    assert isinstance(make(VerifierSpec(name="math", task="t", scores={"timeout": -1.0})), StatusScores)

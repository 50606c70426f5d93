from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from gleaner.actors.reward.problems import Problems, answer_of, split_of
from gleaner.actors.reward.source import SPLITS, BadTask, Split

WORDS = {"min_word_len": 3, "max_word_len": 10}
OTHER_TASKS = ["chain_sum", "number_sorting", "word_sequence_reversal", "spiral_matrix", "gsm_symbolic"]


SLOW_OR_FAST = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def words() -> Problems:
    return Problems("spell_backward", WORDS, seed=0)


def questions(problems: Problems, split: Split, count: int) -> set[str]:
    return {problems.problem(split, index).question for index in range(count)}


def test_no_question_is_in_two_splits() -> None:
    few = Problems("spell_backward", {"min_word_len": 3, "max_word_len": 3}, seed=3)
    warmup, train, heldout = (questions(few, split, 500) for split in SPLITS)
    assert len(warmup) > 100
    assert len(train) > 100
    assert len(heldout) > 20
    assert not warmup & train
    assert not warmup & heldout
    assert not train & heldout


def test_held_out_question_is_held_out_for_every_seed() -> None:
    heldout = questions(Problems("spell_backward", WORDS, seed=1), "heldout", 50)
    assert {split_of(question) for question in heldout} == {"heldout"}


def test_seed_fixes_the_problems_in_any_order(words: Problems) -> None:
    again = Problems("spell_backward", WORDS, seed=0)
    backwards = [again.problem("train", index) for index in reversed(range(40))]
    assert backwards[::-1] == [words.problem("train", index) for index in range(40)]
    others = Problems("spell_backward", WORDS, seed=1)
    assert len(questions(words, "train", 100) & questions(others, "train", 100)) < 5


def test_neighbouring_seeds_share_no_shifted_stream() -> None:
    first, second = (
        [problems.problem("train", index).question for index in range(60)]
        for problems in (Problems("spell_backward", WORDS, seed=seed) for seed in (10, 11))
    )
    assert first[1:] != second[:-1]
    assert len(set(first) & set(second)) < 5


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("<think>a</think><answer> b </answer>", "b"),
        ("<answer>a</answer> no, <answer>b</answer>", "b"),
        ("<think>a</think> b", "b"),
        ("b", "b"),
        ("<answer>b", "<answer>b"),
        ("", ""),
    ],
)
def test_answer_is_in_the_last_tags_or_after_thinking(response: str, answer: str) -> None:
    assert answer_of(response) == answer


def test_unknown_task_is_refused_with_the_closest_name() -> None:
    with pytest.raises(BadTask, match=r"'spel_backward'.*did you mean 'spell_backward'"):
        Problems("spel_backward", {}, seed=0)


@pytest.mark.parametrize("params", [{"max_wurd_len": 5}, {"min_word_len": 9, "max_word_len": 3}])
def test_wrong_parameters_are_refused_with_the_reason(params: dict[str, object]) -> None:
    with pytest.raises(BadTask, match=r"spell_backward.*word_len|spell_backward.*max_wurd_len"):
        Problems("spell_backward", params, seed=0)


def test_unknown_parameter_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadTask) as refused:
        Problems("spell_backward", {"max_wurd_len": 5}, seed=0)
    message = str(refused.value)
    assert "has no parameter max_wurd_len, did you mean 'max_word_len'" in message
    assert "it has min_word_len, max_word_len, data_file" in message
    with pytest.raises(BadTask, match="has no parameter seed"):  # it follows from the job's own
        Problems("spell_backward", {"seed": 5}, seed=0)


def test_task_without_questions_for_a_split_fails() -> None:
    one = Problems("chain_sum", {"min_terms": 1, "max_terms": 1, "min_digits": 1, "max_digits": 1}, seed=0)
    splits = {
        split_of(f"State the final answer to the following arithmetic problem: {n} =") for n in range(10)
    }
    empty = set(SPLITS) - splits
    assert empty, "these ten questions leave no split empty: choose others"
    for split in empty:
        with pytest.raises(BadTask, match="too few different questions"):
            one.problem(split, 0)


def test_negative_index_is_refused(words: Problems) -> None:
    with pytest.raises(BadTask, match="-1"):
        words.problem("train", -1)

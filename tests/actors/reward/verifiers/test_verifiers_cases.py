"""Test cases of programs: the shapes that datasets have, and the comparison of outputs."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.reward.verifiers.cases import BadTests, Case, cases_of
from gleaner.actors.reward.verifiers.comparison import same_text, same_value

SHAPES = [
    ({"input": "1\n", "output": "2"}, [Case(given="1\n", expected=("2",))]),
    ({"inputs": ["1", ["2", "3"]], "outputs": ["2", "4"]},
     [Case(given="1", expected=("2",)), Case(given="2\n3", expected=("4",))]),
    ({"call": "f", "args": [1], "expected": 2}, [Case(given=[[1], {}], expected=(2,), call="f")]),
    ({"call": "f", "args": [], "kwargs": {"x": 1}, "expected": None},
     [Case(given=[[], {"x": 1}], expected=(None,), call="f")]),
    ({"inputs": [[1, 2]], "outputs": [[3]], "fn_name": "f"},
     [Case(given=[[1, 2], {}], expected=([3], 3), call="f")]),
    ({"input": "[1, 2]\n\"a\"", "output": "3", "testtype": "functional", "fn_name": "f"},
     [Case(given=[[[1, 2], "a"], {}], expected=(3,), call="f")]),
    ({"assert": "assert f((1, 'a'), k=-2) == {1: [True]}"},
     [Case(given=[[[1, "a"]], {"k": -2}], expected=({"1": [True]},), call="f")]),
    ("assert f(1) == 2", [Case(given=[[1], {}], expected=(2,), call="f")]),
    (json.dumps({"input": "1", "output": "2"}), [Case(given="1", expected=("2",))]),
]  # fmt: skip


@pytest.mark.parametrize(("test", "cases"), SHAPES, ids=range(len(SHAPES)))
def test_each_shape_is_read(test: object, cases: list[Case]) -> None:
    assert cases_of([test]) == cases


def test_function_name_may_come_from_the_problem() -> None:
    assert cases_of([{"inputs": [[1]], "outputs": [2]}], {"fn_name": "f"})[0].call == "f"


BAD = [
    ([], "no tests"),
    ([{}], "expected input and output, call and expected, or inputs and outputs, got nothing"),
    ([{"input": "1"}], "got input"),
    ([7], "expected an object"),
    ([{"inputs": [], "outputs": [], "fn_name": "f"}], "f is called by no test"),
    ([{"inputs": ["1"], "outputs": []}], "1 inputs and 0 outputs"),
    ([{"inputs": "1", "outputs": "2"}], "two lists"),
    ([{"call": "f", "args": [1]}], "no expected value"),
    ([{"call": "f.g", "args": [1], "expected": 1}], "name of a function"),
    ([{"call": "f", "args": 1, "expected": 1}], "args: expected a list"),
    ([{"input": 1, "output": "2"}], "input: expected a text"),
    ([{"input": "x", "output": "2", "fn_name": "f"}], "JSON on each line"),
    ([{"input": "1", "output": "2"}, {"call": "f", "args": [], "expected": 1}], "make them two problems"),
    (["assert f(x) == 1"], '{"call": name'),
    (["assert f({1}) == 1"], '{"call": name'),
    (["assert f(1)"], '{"call": name'),
    (["import os; assert f(1) == 1"], '{"call": name'),
    (["assert isinstance(f(1), int)"], '{"call": name'),
    ([{"input": "1" * 2**25, "output": ""}], "at most 33554432"),
    ([{"inputs": ["1"] * 10_001, "outputs": ["1"] * 10_001}], "at most 10000"),
]


@pytest.mark.parametrize(("tests", "words"), BAD, ids=range(len(BAD)))
def test_unusable_tests_are_named_with_a_remedy(tests: list[object], words: str) -> None:
    with pytest.raises(BadTests) as raised:
        cases_of(tests)
    assert words in str(raised.value)


SAME = [
    ("1 2\n3 \n\n", "1 2\n3"), ("0.1", "0.10"), ("0.3333333", "0.33333333"), ("1e3", "1000.0"), ("", "\n"),
    ("YES", "YES"), ("1\r\n2", "1\n2"), ("1000000.4", "1000000.5"),
]  # fmt: skip
OTHER = [
    ("1 2", "1  2 3"), ("1\n2", "1 2"), ("0.33", "0.3333333"), ("yes", "YES"), ("1000000001", "1000000000"),
    ("nan", "0.0"), ("inf", "1e9"), ("1_0", "10"), ("", "1"), ("٣", "3"), ("1e999999999", "1.5"),
    ("1.5", "1" * 500),
]  # fmt: skip


@pytest.mark.parametrize(("found", "expected"), SAME)
def test_equivalent_outputs_are_equal(found: str, expected: str) -> None:
    assert same_text(found, expected, 1e-6)


@pytest.mark.parametrize(("found", "expected"), OTHER)
def test_different_outputs_are_not_equal(found: str, expected: str) -> None:
    assert not same_text(found, expected, 1e-6)


VALUES = [
    (1, 1.0, True), (True, 1, False), (0, False, False), ([1, [2]], [1, [2]], True), ([1, 2], [2, 1], False),
    ({"a": 1.0000000001}, {"a": 1.0}, True), ({"a": 1}, {"b": 1}, False), ("1", 1, False), (None, None, True),
    (None, 0, False), (10**30, 10**30, True), (10**30 + 1, 10**30, False), ([], {}, False), (1.0, 1.1, False),
]  # fmt: skip


@pytest.mark.parametrize(("found", "expected", "same"), VALUES)
def test_values_are_compared_by_structure(found: object, expected: object, same: bool) -> None:
    assert same_value(found, expected, 1e-6) is same


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(json_values, json_values)
def test_value_equality_is_reflexive_and_symmetric(one: object, other: object) -> None:
    assert same_value(one, one, 0.0)
    assert same_value(one, other, 0.0) == same_value(other, one, 0.0)


@given(st.text(), st.text())
def test_any_texts_can_be_compared(one: str, other: str) -> None:
    assert same_text(one, one, 0.0)
    assert same_text(one, other, 0.0) == same_text(other, one, 0.0)

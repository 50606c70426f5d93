"""Mathematical answers inside the sandbox: parsing and comparison by math-verify.

sympy's `parse_expr` evaluates what it parses, so it is replaced by one that takes formulas of known names and
nothing else (`plain_answers`). math-verify's own time limits are signals, which are switched off: the sandbox
ends a process that takes too long. Source: math-verify 0.9.0, latex2sympy2-extended 1.11.0, sympy 1.14, by
reading.
"""

import importlib
import json
import logging

import sympy
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

from gleaner.actors.reward.verdicts import NO_ANSWER, OK, VERIFIER_FAILED
from gleaner.actors.reward.verifiers import plain_answers, responses

MAX_CHARACTERS = 10_000
"""Characters read at the end of a response: a final answer is at the end, and reading takes longer than
linear time.
"""
PARSERS = ("math_verify.parser", "latex2sympy2_extended.latex2sympy2", "sympy.parsing.sympy_parser",
           "sympy.parsing", "sympy")  # fmt: skip
"""Modules that name `parse_expr`; `sympify` takes it from sympy's own."""
DELIMITERS = ("$", "\\(", "\\[", "\\boxed")

Read = list[object]
"""The result of math-verify's parser: an expression of sympy and the text of it; empty for nothing."""

_BOXED = [LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)]
_ANY = [LatexExtractionConfig(), ExprExtractionConfig()]


def prepare(_argument: object = None) -> None:
    """Replace what evaluates, and read once what every response needs."""
    logging.disable(logging.CRITICAL)  # math-verify warns of its time limits
    plain = plain_answers.plain_parser(sympy.parse_expr)
    for module in PARSERS:
        vars(importlib.import_module(module))["parse_expr"] = plain
    for warm in (r"$\frac{1}{2}+x^2$", r"\boxed{(1,\sqrt{2})}", r"$x \in \{1, 2\}$", "0.5", "Monday"):
        for way in read_answer(f"<answer>{warm}</answer>", boxed=False):
            verify(read_expected(warm), way, timeout_seconds=None)


def score(payload: bytes) -> bytes:
    """The score of one response, as JSON of score, status and detail. payload: from `math_answers`."""
    asked = json.loads(payload)
    expected = [one for text in asked["expected"] for one in read_expected(text)]
    if not expected:
        return _result(0.0, VERIFIER_FAILED, "the expected answer cannot be read")
    found = read_answer(asked["response"], boxed=asked["boxed"])
    if not found:
        return _result(0.0, NO_ANSWER, "it holds no mathematical answer")
    right = any(
        verify(
            expected,
            one,
            float_rounding=asked["precision"],
            strict=asked["strict"],
            timeout_seconds=None,
        )
        for one in found
    )
    return _result(float(right), OK, "" if right else f"it answers {found[0][-1]}"[:200])


def read_expected(text: str) -> Read:
    """An expected answer: LaTeX with or without its delimiters, or plain text."""
    whole = text if any(mark in text for mark in DELIMITERS) else f"\\boxed{{{text}}}"
    return list(parse(whole, parsing_timeout=None))


def read_answer(response: str, *, boxed: bool) -> list[Read]:
    """The answer of a response, in the ways that it can be read: the text between answer tags is formula or
    prose. boxed: only `\\boxed{...}` is an answer."""
    text = responses.after_thinking(response)
    within = responses.tagged(text)
    text = (text if within is None else within)[-MAX_CHARACTERS:]
    if boxed:
        ways = [parse(text, _BOXED, parsing_timeout=None)] if "\\boxed" in text else []
    else:
        ways = [parse(text, _ANY, parsing_timeout=None)]
        if within is not None and not any(mark in text for mark in DELIMITERS):
            ways.insert(0, parse(f"\\boxed{{{text}}}", parsing_timeout=None))
    return [list(way) for way in ways if way]


def _result(score: float, status: str, detail: str) -> bytes:
    return json.dumps([score, status, detail]).encode()

"""Answers as data: literals and formulas, parsed without evaluating calls.

Some verifiers of reasoning-gym hand a model's answer to `eval`, or to sympy's `parse_expr`, which is one. The
functions here replace these: anything but a literal, or a formula of known names, raises `NotPlain`.
"""

import ast
import re
from collections.abc import Callable
from typing import Any

MAX_LITERAL = 20_000
MAX_FORMULA = 2_000
FUNCTIONS = frozenset((
    "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "acot", "asec", "acsc", "sinh",
    "cosh", "tanh", "coth", "asinh", "acosh", "atanh", "exp", "log", "ln", "sqrt", "cbrt", "Abs", "abs",
    "sign", "factorial", "gamma", "erf", "pi", "E", "I", "oo", "Rational", "Integer", "Float",
))  # fmt: skip
"""Names of more than two letters that a formula may have; shorter ones are its variables."""

_ALLOWED = re.compile(r"[0-9A-Za-z_+\-*/^%(),.!\s]*")
_NAMES = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_VARIABLE = re.compile(r"[A-Za-z][a-z0-9]?")
_ATTRIBUTE = re.compile(r"\.\s*[A-Za-z_]|[A-Za-z_)]\s*\.(?!\d)")


class NotPlain(ValueError):
    """The answer is no literal, or no formula of known names."""


def literal(text: object, *_scopes: object) -> object:
    """In place of `eval`: the value of a Python literal. Raises `NotPlain`."""
    if not isinstance(text, str) or len(text) > MAX_LITERAL:
        raise NotPlain("the answer is no text, or too long for a literal")
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise NotPlain(f"the answer is no literal: {type(error).__name__}") from error


def formula(text: object) -> str:
    """The text itself where it is a formula: numbers, operators, known functions and short variables, with no
    attribute, no string and no keyword. Raises `NotPlain`."""
    if not isinstance(text, str) or len(text) > MAX_FORMULA:
        raise NotPlain("the answer is no text, or too long for a formula")
    if not _ALLOWED.fullmatch(text) or _ATTRIBUTE.search(text):
        raise NotPlain("the answer holds what no formula has")
    for name in _NAMES.findall(re.sub(r"(?<![A-Za-z_])\d+(\.\d*)?([eE][+-]?\d+)?", " 0 ", text)):
        if name not in FUNCTIONS and not _VARIABLE.fullmatch(name):
            raise NotPlain(f"the answer names {name[:40]!r}, which no formula may")
    return text


def plain_parser(parse: Callable[..., Any]) -> Callable[..., Any]:
    """`parse` (sympy's `parse_expr`) for formulas alone. Raises `NotPlain`."""

    def parse_formula(text: object, *arguments: object, **options: object) -> Any:
        return parse(formula(text), *arguments, **options)

    return parse_formula

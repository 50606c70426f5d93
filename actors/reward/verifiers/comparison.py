"""Comparison of a program's output with the expected one. Pure.

The output is data, of any size and shape within the limits."""

import re
from decimal import Decimal

from gleaner.actors.reward.entries import Json

MAX_NUMBER = 400
"""Characters of a token that may be a number."""
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_WHOLE = re.compile(r"[+-]?[0-9]+")


def same_text(found: str, expected: str, tolerance: float) -> bool:
    """Whether two outputs are equal, line by line without outer blanks and empty lines at the end; else token
    by token, where numbers are compared as decimals: to within `tolerance`, absolute or relative, where the
    expected one has a fraction or an exponent."""
    ours, theirs = _lines(found), _lines(expected)
    if ours == theirs:
        return True
    if len(ours) != len(theirs):
        return False
    for our, their in zip(ours, theirs, strict=True):
        if our != their:
            tokens, wanted = our.split(), their.split()
            if len(tokens) != len(wanted):
                return False
            if not all(_same_token(*pair, tolerance) for pair in zip(tokens, wanted, strict=True)):
                return False
    return True


def same_value(found: Json, expected: Json, tolerance: float) -> bool:
    """Whether two values of JSON are equal: numbers by value, to within `tolerance` where one is a float;
    true and false are no numbers; a list in order, an object by its keys."""
    if isinstance(found, bool) or isinstance(expected, bool):
        return found is expected
    if isinstance(found, int | float) and isinstance(expected, int | float):
        if found == expected:
            return True
        either = isinstance(found, float) or isinstance(expected, float)
        return either and _close(Decimal(found), Decimal(expected), tolerance)
    if isinstance(found, list | tuple) and isinstance(expected, list | tuple):
        pairs = zip(found, expected, strict=False)
        return len(found) == len(expected) and all(same_value(*pair, tolerance) for pair in pairs)
    if isinstance(found, dict) and isinstance(expected, dict):
        if found.keys() != expected.keys():
            return False
        return all(same_value(found[key], expected[key], tolerance) for key in expected)
    return type(found) is type(expected) and bool(found == expected)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _same_token(found: str, expected: str, tolerance: float) -> bool:
    if found == expected:
        return True
    if max(len(found), len(expected)) > MAX_NUMBER:
        return False
    if not (_NUMBER.fullmatch(found) and _NUMBER.fullmatch(expected)):
        return False
    return _close(Decimal(found), Decimal(expected), 0.0 if _WHOLE.fullmatch(expected) else tolerance)


def _close(found: Decimal, expected: Decimal, tolerance: float) -> bool:
    if not (found.is_finite() and expected.is_finite()):
        return False
    try:
        apart = abs(found - expected)
        return apart <= Decimal(tolerance) * max(Decimal(1), abs(expected))
    except ArithmeticError:  # of numbers with huge exponents
        return False

"""The score in a judge's answer, read strictly. Pure.

Only the judge's own text is read: what follows its thinking, and nothing that may be an echo. An answer that
carries the id of its call is the judge's own, since no response can contain it. One without an id counts only
if nothing that the judge read looks like an answer.
"""

import json
import math
import re
from statistics import median

from gleaner.actors.reward.verifiers.responses import THINK_END

THINK = "<think>"
MAX_TEXT_CHARS = 2**17
_ELEMENT = re.compile(r'<score(?: id="([^"<>]{0,64})")?>([^<>]{1,64})</score>')
_NUMBER = re.compile(r"[+-]?\d{1,20}(?:\.\d{1,20})?", re.ASCII)
_FIELDS = frozenset({"id", "reason", "score"})
_LOOKS_LIKE_ELEMENT = re.compile(r"<\s*/?\s*score", re.IGNORECASE)


class NoScore(ValueError):
    """A judge's answer contains no score; the text gives the reason."""


def score_in(text: str, nonce: str, scale: tuple[float, float], *, anonymous: bool) -> float:
    """The judge's score. nonce: the id of its call. anonymous: an answer without it counts too. Raises
    NoScore."""
    own = _own(text)
    found = _object(own, nonce, anonymous=anonymous)
    if found is None:
        found = _element(own, nonce, anonymous=anonymous)
    low, high = scale
    if not (math.isfinite(found) and low <= found <= high):
        raise NoScore(f"its score is {found:g}, and scores are from {low:g} to {high:g}")
    return found


def looks_like_answer(text: str) -> bool:
    """Whether an echo of a text, or of a part of it, could be read as a judge's answer."""
    named = "score" in text.lower() or "\\u" in text
    return bool(_LOOKS_LIKE_ELEMENT.search(text)) or ("{" in text and named)


def combined(scores: list[float]) -> float:
    """The median of votes; with an even number the mean of the middle two."""
    return float(median(scores))


def schema(nonce: str, scale: tuple[float, float]) -> dict[str, object]:
    """The JSON schema of an answer; the reason comes first, as the score should follow from it."""
    return {
        "type": "object",
        "properties": {
            "id": {"type": "string", "enum": [nonce]},
            "reason": {"type": "string"},
            "score": {"type": "number", "minimum": scale[0], "maximum": scale[1]},
        },
        "required": ["id", "reason", "score"],
        "additionalProperties": False,
    }


def _own(text: str) -> str:
    """The text behind the judge's thinking."""
    if len(text) > MAX_TEXT_CHARS:
        raise NoScore(f"it has more than {MAX_TEXT_CHARS} characters")
    own = text.rpartition(THINK_END)[2]
    if THINK in own:
        raise NoScore("it ends within the judge's thinking")
    return own.strip()


def _object(text: str, nonce: str, *, anonymous: bool) -> float | None:
    """The score of an answer that is, or ends with, a JSON object; None for any other text."""
    inner = text.removesuffix("```").rstrip()
    if not inner.endswith("}"):
        return None
    try:
        found = json.loads(inner[inner.find("{") :], object_pairs_hook=_fields, parse_constant=_refused)
    except NoScore:
        raise
    except (ValueError, RecursionError):
        return None
    score = found.get("score")
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise NoScore("its JSON object has no number 'score'")
    _check_id(found.get("id"), nonce, anonymous=anonymous)
    try:
        return float(score)
    except OverflowError:
        raise NoScore("its score is too large") from None


def _fields(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object with the expected fields, each once."""
    found = dict(pairs)
    if len(found) < len(pairs) or not _FIELDS.issuperset(found):
        raise NoScore(f"its JSON object has other fields than {', '.join(sorted(_FIELDS))}, or one twice")
    return found


def _refused(constant: str) -> float:
    raise NoScore(f"its score is {constant}")


def _element(text: str, nonce: str, *, anonymous: bool) -> float:
    """The last score element with the id of the call, else the last of all."""
    found = _ELEMENT.findall(text)
    own = [number for name, number in found if name == nonce]
    if not own:
        if not found:
            raise NoScore("it contains neither a JSON object nor a <score> element")
        _check_id(found[-1][0] or None, nonce, anonymous=anonymous)
        own = [found[-1][1]]
    number = own[-1].strip()
    if not _NUMBER.fullmatch(number):
        raise NoScore(f"its score is no number: {number!r}")
    return float(number)


def _check_id(name: object, nonce: str, *, anonymous: bool) -> None:
    if name == nonce or (name is None and anonymous):
        return
    if name is None:
        raise NoScore(
            "it lacks the id of its call, and may be an echo: what it read contains a text like an answer"
        )
    raise NoScore("it carries the id of another call")

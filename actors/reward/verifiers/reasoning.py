"""The verifiers of `reasoning-gym`, as they run inside the sandbox.

Four of its tasks hand the answer to `eval` and five to sympy's `parse_expr`: in these the two are replaced by
functions that evaluate nothing, so that an answer cannot score itself. Source: reasoning-gym 0.1.25, by reading.
"""

import importlib
import math
import pickle

from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import create_dataset

from actors.reward.verifiers import plain_answers

FUNCTION = f"{__name__}:score"
PREPARE = f"{__name__}:prepare"
EVALUATE = ("games.n_queens", "algorithmic.spiral_matrix", "algorithmic.binary_matrix",
            "algorithmic.string_insertion")  # fmt: skip
PARSE = ("games.countdown", "games.puzzle24")
RAISED = b"raised "

_datasets: list[ProceduralDataset] = []


def prepare(task: dict[str, object]) -> None:
    """Make the verifier of a task, once for all programs. task: its name and parameters."""
    import sympy

    for module in EVALUATE:
        vars(importlib.import_module(f"reasoning_gym.{module}"))["eval"] = plain_answers.literal
    plain = plain_answers.plain_parser(sympy.parse_expr)
    for module in PARSE:
        vars(importlib.import_module(f"reasoning_gym.{module}"))["parse_expr"] = plain
    sympy.parse_expr = plain
    params = task["params"]
    assert isinstance(params, dict)
    _datasets[:] = [create_dataset(str(task["name"]), seed=0, size=1, **params)]


def score(payload: bytes) -> bytes:
    """The score of an answer as text, or why the verifier raised. The payload is trusted and its answer is
    not: it is a text in it, which is parsed as text."""
    answer, entry = pickle.loads(payload)  # noqa: S301  # written by `request`
    try:
        value = float(_datasets[0].score_answer(answer, entry))
    except Exception as error:  # noqa: BLE001  # a hundred foreign verifiers, parsing what a model made up
        return RAISED + f"{type(error).__name__}: {error}"[:300].encode()
    return repr(min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0).encode()


def request(answer: str, entry: dict[str, object]) -> bytes:
    """The payload for `score`."""
    return pickle.dumps((answer, entry))

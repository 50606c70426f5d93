"""Turn check: whether the result of an engine's turn can be true.

Owns what is checked of the rows and of the served weights. Pure. What is checked is what no engine may
return: a token that its model does not have, a log-prob that is none, a ticket that was never given, columns
of unequal length, weights that were not loaded. A token that the model has, and did not choose, is not seen
here, nor anywhere else: engines and their arithmetic are believed.
"""

import math

import numpy as np

from gleaner.actors.engine.worker.engine_port import StepOutput
from gleaner.actors.engine.worker.port import StepResult
from gleaner.actors.protocol.weights import Fetched
from gleaner.transport.token_frame import Flag

MOST_LOGPROB = 0.01
"""Above 0 by no more than rounding."""

_most = np.maximum.reduce  # `max` of an array, whose two calls in Python take longer for a small one

Served = tuple[int | None, bytes]
"""Version and root."""


class UnsoundTurn(RuntimeError):
    """The engine returned what cannot be true: none of the turn is used, and the engine is replaced."""


def check_turn(turn: StepResult, load: Fetched | None, served: Served, last_ticket: int) -> None:
    """Check the result of a turn that was ordered to load `load`, of an engine that served `served`.
    last_ticket: the highest that it was given. Raises `UnsoundTurn`."""
    expected = served if load is None or turn.load_failed else (load.version, load.root)
    if turn.version is not None and (turn.version, turn.root) != expected:
        raise UnsoundTurn(
            f"the engine serves version {turn.version} with root {turn.root.hex()[:12]}, it was ordered to "
            f"serve {expected[0]} with root {expected[1].hex()[:12]}"
        )
    if turn.output is not None and len(turn.output):
        _check_rows(turn.output, turn.vocabulary, last_ticket)


def _check_rows(output: StepOutput, vocabulary: int, last_ticket: int) -> None:
    rows = len(output.tickets)
    if not (rows == len(output.tokens) == len(output.logprobs) == len(output.flags)):
        lengths = [len(column) for column in (output.tickets, output.tokens, output.logprobs, output.flags)]
        raise UnsoundTurn(f"the columns of a turn have {lengths} rows")
    if vocabulary and (token := int(_most(output.tokens))) >= vocabulary:
        raise UnsoundTurn(f"token {token} is outside of the vocabulary of {vocabulary}")
    least, most = float(np.minimum.reduce(output.logprobs)), float(_most(output.logprobs))
    if not (math.isfinite(least) and most <= MOST_LOGPROB):  # min and max are NaN if any is
        raise UnsoundTurn(f"log-probs lie between {least} and {most}; they are finite and at most 0")
    if int(_most(output.tickets)) > last_ticket:
        given = output.tickets[output.flags & np.uint8(Flag.NO_TOKEN) == 0]  # an end may be of any ticket
        if len(given) and (ticket := int(given.max())) > last_ticket:
            raise UnsoundTurn(f"a token came for ticket {ticket}, the last one given is {last_ticket}")

"""A turn that cannot be true is refused, whatever is wrong with it; any other is taken."""

from dataclasses import replace

import numpy as np
import pytest

from gleaner.actors.engine.worker.engine_port import StepOutput
from gleaner.actors.engine.worker.port import StepResult
from gleaner.actors.engine.worker.turn_check import UnsoundTurn, check_turn
from gleaner.actors.protocol.weights import Fetched
from gleaner.sim.models.engine_faults import EngineFaults, spoiled
from gleaner.transport.token_frame import Flag

SERVED = (3, b"root")


def turn(tokens: tuple[int, ...] = (5, 99), logprobs: tuple[float, ...] = (-0.5, 0.0)) -> StepResult:
    output = StepOutput(
        tickets=np.array([1, 2], np.uint32),
        tokens=np.array(tokens, np.uint32),
        logprobs=np.array(logprobs, np.float32),
        flags=np.zeros(2, np.uint8),
    )
    return StepResult(output, [], 3, b"root", idle=False, vocabulary=100)


def test_sound_turn_is_taken_also_with_the_end_of_an_unknown_ticket() -> None:
    check_turn(turn(), None, SERVED, last_ticket=2)
    sound = turn()
    assert sound.output is not None
    ended = np.array([0, Flag.ABORTED | Flag.NO_TOKEN], np.uint8)
    check_turn(replace(sound, output=replace(sound.output, flags=ended)), None, SERVED, last_ticket=1)
    check_turn(replace(turn((5, 10**6)), vocabulary=0), None, SERVED, last_ticket=2)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("vocabulary", "token 107 is outside of the vocabulary of 100"),
        ("nan", "log-probs lie between nan and nan"),
        ("positive", "log-probs lie between -0.5 and 1.5"),
        ("ticket", "a token came for ticket 1000002, the last one given is 2"),
        ("ragged", r"the columns of a turn have \[2, 1, 2, 2\] rows"),
        ("version", "the engine serves version 4 .* ordered to serve 3"),
    ],
)
def test_turn_with_garbage_is_refused(how: str, why: str) -> None:
    with pytest.raises(UnsoundTurn, match=why):
        check_turn(spoiled(turn(), how), None, SERVED, last_ticket=2)


def test_weights_that_were_not_ordered_are_refused() -> None:
    load = Fetched(version=4, root=b"new", path="", tensors=(), model_config=b"", pulled_bytes=0, seconds=0.0)
    with pytest.raises(UnsoundTurn, match="ordered to serve 4"):
        check_turn(turn(), load, SERVED, last_ticket=2)
    check_turn(replace(turn(), load_failed="no space"), load, SERVED, last_ticket=2)
    check_turn(replace(turn(), version=4, root=b"new"), load, SERVED, last_ticket=2)


def test_ordered_garbage_waits_for_a_turn_with_rows() -> None:
    came: list[str] = []
    faults = EngineFaults()
    faults.order("spot-1", "nan", lambda: came.append("nan"))
    empty = replace(turn(), output=None)
    assert faults.spoil("spot-1", empty) is empty
    assert faults.spoil("spot-2", turn()).output is not None
    assert came == []
    faults.spoil("spot-1", turn())
    assert came == ["nan"]
    with pytest.raises(ValueError, match="no garbage of kind"):
        spoiled(turn(), "noise")

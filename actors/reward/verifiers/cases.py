"""`Case`: tests of programs in the formats of datasets (input, expected output).

Pure. Owns the formats (docs/verifiers.md). Expected output never leaves the trusted end.
"""

import ast
import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gleaner.actors.reward.entries import Json

MAX_CASES = 10_000
MAX_INPUT_BYTES = 32 * 2**20


class BadTests(ValueError):
    """The tests of a problem cannot be used; the text names them and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One test. given: the text of stdin, or [arguments, arguments by name] for the function `call`.
    expected: the possible outputs, a text or values that JSON has."""

    given: Json
    expected: tuple[Json, ...]
    call: str = ""


def cases_of(tests: Sequence[Json], info: Mapping[str, Json] = {}) -> list[Case]:
    """The tests of a problem. info: of the problem, where some datasets keep the function's name. Raises
    `BadTests`."""
    found: list[Case] = []
    for number, test in enumerate(tests, 1):
        try:
            found += _cases(test, str(info.get("fn_name") or info.get("func_name") or ""))
        except BadTests as problem:
            raise BadTests(f"test {number}: {problem}") from None
    if not found:
        raise BadTests("it has no tests; give at least one input with its output")
    if len(found) > MAX_CASES:
        raise BadTests(f"it has {len(found)} tests, at most {MAX_CASES} are run")
    if len({bool(case.call) for case in found}) > 1:
        raise BadTests("some tests call a function and some give stdin; make them two problems")
    given_bytes = len(json.dumps([case.given for case in found]))
    if given_bytes > MAX_INPUT_BYTES:
        raise BadTests(f"its inputs have {given_bytes} bytes, at most {MAX_INPUT_BYTES} are sent")
    return found


def _cases(test: Json, function: str) -> list[Case]:
    if isinstance(test, str):
        text = test.strip()
        if not text.startswith("{"):
            return [_of_assert(text)]
        try:
            test = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadTests(f"no JSON: {error}") from None
    if not isinstance(test, Mapping):
        raise BadTests(f"expected an object, got {type(test).__name__}")
    if "assert" in test:
        return [_of_assert(str(test["assert"]))]
    if "inputs" in test or "outputs" in test:
        return _of_lists(test, function)
    if "call" in test:
        return [_of_call(test)]
    if "input" in test and "output" in test:
        function = str(test.get("fn_name") or function)
        if test.get("testtype") == "functional" or test.get("fn_name"):
            return [_of_pair(test["input"], test["output"], _named(function))]
        return [_of_pair(test["input"], test["output"], "")]
    shapes = "input and output, call and expected, or inputs and outputs"
    raise BadTests(f"expected {shapes}, got {', '.join(map(str, test)) or 'nothing'}")


def _of_call(test: Mapping[str, Json]) -> Case:
    args, kwargs = test.get("args", []), test.get("kwargs", {})
    if "expected" not in test:
        raise BadTests("it has a call and no expected value; null is a value too")
    if not isinstance(args, list | tuple):
        raise BadTests(f"args: expected a list, got {type(args).__name__}")
    if not isinstance(kwargs, Mapping):
        raise BadTests(f"kwargs: expected an object, got {type(kwargs).__name__}")
    return Case(
        given=[list(args), dict(kwargs)], expected=(test["expected"],), call=_named(str(test["call"]))
    )


def _of_lists(test: Mapping[str, Json], function: str) -> list[Case]:
    """The shape of APPS, TACO and LiveCodeBench: lists of inputs and outputs, with the name of a function
    where they are no stdin."""
    inputs, outputs = test.get("inputs"), test.get("outputs")
    function = str(test.get("fn_name") or function)
    if not isinstance(inputs, list | tuple) or not isinstance(outputs, list | tuple):
        raise BadTests("inputs and outputs: expected two lists")
    if len(inputs) != len(outputs):
        raise BadTests(f"it has {len(inputs)} inputs and {len(outputs)} outputs")
    if not inputs:
        raise BadTests(f"{function or 'its program'} is called by no test: inputs is empty")
    name = _named(function) if function else ""
    return [_of_pair(given, output, name) for given, output in zip(inputs, outputs, strict=True)]


def _of_pair(given: Json, output: Json, function: str) -> Case:
    if not function:
        return Case(given=_lines(given, "input"), expected=(_lines(output, "output"),))
    if isinstance(given, str):  # LiveCodeBench: an argument a line
        try:
            given = [json.loads(line) for line in given.splitlines() if line.strip()]
        except (ValueError, RecursionError) as error:
            raise BadTests(f"input: expected JSON on each line: {error}") from None
    if not isinstance(given, list | tuple):
        raise BadTests(f"input: expected a list of arguments, got {type(given).__name__}")
    if isinstance(output, str):
        with contextlib.suppress(ValueError, RecursionError):  # else a text that is meant as one
            output = json.loads(output)
    accepted: tuple[Json, ...] = (output,)
    if isinstance(output, list | tuple) and len(output) == 1:  # APPS has some in a list and some not
        accepted = (output, output[0])
    return Case(given=[list(given), {}], expected=accepted, call=function)


def _lines(value: Json, name: str) -> str:
    if isinstance(value, list | tuple) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if not isinstance(value, str):
        raise BadTests(f"{name}: expected a text, got {type(value).__name__}")
    return value


def _of_assert(text: str) -> Case:
    """`assert f(arguments) == value`, with literals alone: it is parsed, because a program's own assertions
    prove nothing."""
    wanted = 'write it as {"call": name, "args": [...], "expected": value}'
    try:
        module = ast.parse(text)
        statement = module.body[0]
        assert len(module.body) == 1
        assert isinstance(statement, ast.Assert)
        compared = statement.test
        assert isinstance(compared, ast.Compare)
        assert len(compared.ops) == 1
        assert isinstance(compared.ops[0], ast.Eq | ast.Is)
        call = compared.left
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Name)
        args = [_json(ast.literal_eval(one)) for one in call.args]
        kwargs = {str(one.arg): _json(ast.literal_eval(one.value)) for one in call.keywords}
        expected = _json(ast.literal_eval(compared.comparators[0]))
    except (AssertionError, IndexError, SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        short = text if len(text) <= 80 else f"{text[:77]}..."
        raise BadTests(f"{short!r} is no call with literals that equals a literal; {wanted}") from None
    return Case(given=[args, kwargs], expected=(expected,), call=call.func.id)


def _json(value: object) -> Json:
    """A literal as JSON has it. Raises ValueError, TypeError."""
    if isinstance(value, set | frozenset | bytes | complex):
        raise TypeError("JSON has no such value")
    return json.loads(json.dumps(value))


def _named(function: str) -> str:
    if not function.isidentifier():
        raise BadTests(f"expected the name of a function, got {function!r}")
    return function

"""`OwnFunction`: a user's function on one response, with error descriptions.

Used inside the sandbox (`function_calls`), and outside where the settings trust it (`trusted_functions`).
"""

import asyncio
import errno
import inspect
import os
import socket
import sys
import sysconfig
import traceback
from collections.abc import Coroutine, Iterator, Mapping
from importlib import import_module
from types import TracebackType
from typing import cast

from gleaner.actors.reward.verifiers import call_forms
from gleaner.actors.reward.verifiers.call_forms import BadFunction, BadResult, Form, FunctionResult, Item

MAX_TEXT = 300
NO_NETWORK = "a function has no network in the sandbox: reward.function.trusted = true runs it outside"
NO_FILE = (
    "in the sandbox a function reads its modules and site-packages only: name the file in "
    "reward.function.reads"
)
NO_MODULE = (
    "in the sandbox a function imports what is installed and the modules beside it that its source names; of "
    "a folder in /tmp only while it is loaded"
)


class OwnFunction:
    """A user's function. `form`: its call form."""

    def __init__(self, call: str, folder: str, style: str) -> None:
        """Import it. call: "module:function"; folder: to import from, before what is installed; "": none.
        Raises BadFunction."""
        self.name = call
        module, _, name = call.partition(":")
        if folder and folder not in sys.path:
            sys.path.insert(0, folder)
        try:
            found: object = import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except (Exception, SystemExit) as error:  # any error of the user's module
            where = f" from {folder}" if folder else ""
            raise BadFunction(f"{call}: it cannot be imported{where}: {words(error)}") from error
        try:
            self.form: Form = call_forms.form_of(found, style)
        except BadFunction as problem:
            raise BadFunction(f"{call}: {problem}") from None
        self._function = cast("call_forms.Function", found)
        self._runner: asyncio.Runner | None = None

    def call(self, item: Item) -> FunctionResult:
        """The function's result for a response. Raises BadResult, and errors of the function."""
        result = self.form.call(self._function, item)
        if inspect.isawaitable(result):
            self._runner = self._runner or asyncio.Runner()  # of this process: a fork has its own
            result = self._runner.run(cast("Coroutine[object, object, object]", _awaited(result)))
        return call_forms.read(self.form.style, result)

    async def call_async(self, item: Item) -> FunctionResult:
        """The same within a loop, where other calls wait at the same time."""
        result = self.form.call(self._function, item)
        return call_forms.read(self.form.style, await result if inspect.isawaitable(result) else result)

    def close(self) -> None:
        """Close its event loop, if it has one."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None


async def _awaited(result: object) -> object:
    assert inspect.isawaitable(result)
    return await result


def item_of(
    question: str, messages: list[dict[str, str]], response: str, answer: object, info: Mapping[str, object]
) -> dict[str, object]:
    """The arguments of a function for a response and its problem."""
    return {
        "prompt": question,
        "messages": messages,
        "response": response,
        "answer": answer,
        "info": dict(info),
    }


def failure(function: OwnFunction, error: BaseException, *, inside: bool) -> str:
    """The function's error, with the line of its file. inside: it ran in the sandbox."""
    if isinstance(error, BadResult):
        return f"{function.name}: {error}"[:MAX_TEXT]
    return f"{function.name} raised {words(error, inside=inside)}"


def words(error: BaseException, *, inside: bool = True) -> str:
    """Type and text of an error, the last line outside of installed packages, and the part of the sandbox in
    it."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_TEXT]
    where = _place(error.__traceback__)
    hint = _hint(error) if inside else ""
    return f"{text}{f' ({where})' if where else ''}{f'; {hint}' if hint else ''}"


def _place(trace: TracebackType | None) -> str:
    """The last line of a traceback that is the user's: no package's, and not ours."""
    ours, stdlib = os.path.dirname(os.path.abspath(__file__)), sysconfig.get_path("stdlib")
    found = ""
    for frame, line in traceback.walk_tb(trace):  # reads no file: not all can be read here
        file = frame.f_code.co_filename
        if not file.startswith(("<", ours, stdlib)) and "site-packages" not in file:
            found = f"{os.path.basename(file)}:{line}"
    return found


def _hint(error: BaseException) -> str:
    """The request that the sandbox refused, if that is the cause."""
    for one in _causes(error):
        if isinstance(one, socket.gaierror | ConnectionError):
            return NO_NETWORK
        if isinstance(one, PermissionError) and one.errno == errno.EPERM and not one.filename:
            return NO_NETWORK
        if isinstance(one, PermissionError | FileNotFoundError) and one.filename:
            return NO_FILE
        if isinstance(one, ModuleNotFoundError):
            return NO_MODULE
        if isinstance(one, TypeError) and "string indices must be integers" in str(one):
            return (
                'a TRL function that takes completions as messages needs reward.function.style = "trl-chat"'
            )
    return ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__

"""Threads for `delta`: the kernels run without the interpreter's lock, so chunks are done on every core.

Adapter of `delta.Mapper`.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, wait
from typing import TypeVar

from actors.weights.delta import Mapper

AT_ONCE = 64
"""Chunks given to the executor together: what is encoded and not yet bundled stays bounded by them."""

_Out = TypeVar("_Out")


def lots(executor: Executor) -> Mapper:
    """On the threads of `executor`. Each lot is waited for: nothing is written any more after an error."""

    def each(call: Callable[[int], _Out], numbers: Iterable[int], /) -> Iterator[_Out]:
        waiting = iter(numbers)
        while lot := [executor.submit(call, number) for number in itertools.islice(waiting, AT_ONCE)]:
            wait(lot)
            for one in lot:
                yield one.result()

    return each

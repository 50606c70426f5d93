"""Thread pool for `image_delta`; the kernels release the interpreter's lock.

Adapter of `image_delta.Mapper`.
"""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from typing import TypeVar

from gleaner.actors.weights.delta.image_delta import Mapper

AT_ONCE = 64
"""Chunks given to the executor together; this bounds the encoded chunks that are not yet bundled."""

MOST = 8
"""Threads that are used by default: with more, they wait for memory."""

_Out = TypeVar("_Out")


def on_threads(count: int) -> Mapper:
    """A mapper on so many threads, which live as long as one delta takes.

    0: a quarter of the cores that this process may use, at most `MOST`. 1: the caller's own thread is used.
    """
    threads = count if count else max(1, min(MOST, len(os.sched_getaffinity(0)) // 4))
    if threads == 1:
        return map

    def each(call: Callable[[int], _Out], numbers: Iterable[int], /) -> Iterator[_Out]:
        with ThreadPoolExecutor(threads, "delta") as executor:
            yield from lots(executor)(call, numbers)

    return each


def lots(executor: Executor) -> Mapper:
    """A mapper on the threads of `executor`. It waits for each lot, so nothing is written any more after an
    error.
    """

    def each(call: Callable[[int], _Out], numbers: Iterable[int], /) -> Iterator[_Out]:
        waiting = iter(numbers)
        while lot := [executor.submit(call, number) for number in itertools.islice(waiting, AT_ONCE)]:
            wait(lot)
            for one in lot:
                yield one.result()

    return each

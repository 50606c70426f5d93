"""`RunningPull`: when another source is requested, and what a failed pull leaves behind."""

import asyncio
import gc
import weakref

import pytest

from gleaner.actors.weights.transfer.pull_state import RunningPull, SourceChanged
from gleaner.transport.bulk import SourceGone


class _Image:
    """Memory of a pull, of which a test sees whether it is released."""


def test_pull_requests_no_other_source_when_none_may_be_assigned() -> None:
    asked: list[str] = []

    async def other_than(source: str) -> str:
        asked.append(source)
        return "other"

    async def pull_for(seconds: float, may_change: bool) -> None:
        pull = RunningPull(other_than, lambda source: may_change, lambda: 0)
        await pull.finish("publisher", asyncio.sleep(seconds))

    asyncio.run(pull_for(0.7, may_change=False))
    assert asked == []
    with pytest.raises(SourceChanged, match="publisher is left for other"):
        asyncio.run(pull_for(0.7, may_change=True))
    assert asked == ["publisher"]


def test_failed_pull_releases_its_memory_without_a_collection() -> None:
    async def fails(image: _Image) -> None:
        raise SourceGone("it hung up")

    async def other_than(_source: str) -> str:
        return ""

    async def attempt() -> "weakref.ref[_Image]":
        image = _Image()
        pull = RunningPull(other_than, lambda source: False, lambda: 0)
        try:
            await pull.finish("publisher", fails(image))
        except SourceGone:
            return weakref.ref(image)
        raise AssertionError("the pull did not fail")

    async def left() -> bool:
        gc.disable()
        try:
            reference = await attempt()
            return reference() is not None
        finally:
            gc.enable()

    assert not asyncio.run(left())

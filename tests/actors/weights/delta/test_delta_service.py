"""Deltas of a host: its part of a version goes into the one delta of all owners."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gleaner.actors.protocol.weights import JoinDelta
from gleaner.actors.weights.delta.service import ServedDeltas
from gleaner.configs.schema import Weights
from gleaner.supervisor import Refused

MANIFEST = cast(Any, SimpleNamespace(version=3, root=b"r"))


@pytest.mark.parametrize("delta", [True, False])
async def test_owner_reports_its_part_to_the_first_owner_also_without_a_base(delta: bool) -> None:
    asked: list[tuple[str, object]] = []
    running: list[asyncio.Task[None]] = []

    async def ask(to: str, request: object, **_: object) -> None:
        asked.append((to, request))
        raise Refused("there is no base")

    ctx = SimpleNamespace(
        name="a/transfer",
        ask=ask,
        log=logging.getLogger(__name__),
        background=lambda work, _: running.append(asyncio.ensure_future(work)),
    )
    deltas = ServedDeltas(cast(Any, ctx), cast(Any, None), cast(Any, None), Weights(delta=delta))
    deltas.begin_part(None, MANIFEST, (), "b/transfer")
    made = deltas.being_made(3)
    assert (made is not None) is delta
    await asyncio.gather(*running)
    request = JoinDelta(version=3, root=b"r", source="a/transfer", table=b"")
    assert asked == ([("b/transfer", request)] if delta else [])
    assert made is None or made.is_set()
    assert deltas.being_made(3) is None

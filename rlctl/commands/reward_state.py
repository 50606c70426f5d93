"""`rlctl reward ps` and `rlctl reward tap`: the reward tier of a running job."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from gleaner.rlctl.columns import Column, Styled, Table, fitted
from gleaner.rlctl.commands.terminal import (
    Subparsers,
    add_cluster,
    add_command,
    add_json,
    chosen_cluster,
    console,
    print_json,
    run_async,
)
from gleaner.rlctl.errors import NOTHING, OK, nothing, usage
from gleaner.rlctl.quantity_format import age

if TYPE_CHECKING:  # their import takes longer than the help of the command
    from rich.console import Group

    from gleaner.actors.protocol.reward import ItemState, RewardState

_PS = """\
Show the reward tier of a running job: its stages, its hosts, and the batches whose verdicts steps wait for.

Where several jobs share a service (--url), each has a row: what of it waits and runs, and what it used.

WORKERS are those that get items now, MOST those that the hosts can have, PLANNED those of the last plan
(reward.planner). A batch is complete in DUE if nothing queues, as the last one of its kind foresees (the
paper's T); the batch with the earliest time comes first. DELAY is what a plan may delay it (D)."""

_TAP = """\
Show where one request is in the reward tier: where it runs, or behind how many others it waits, and why.

REQUEST is its id, such as step-12/3/1 (batch, group, sample), as `rlctl tap` and the logs show it. A service
that several jobs share (--url) has ids of its own: give the name of a job there, for its request that waits
longest, or the id that is shown then. Exit code 3: the tier does not hold it: it is not finished yet, or its
batch is over; no request of the job is open.

It waits for one of these reasons: no host offers workers of its stage, all hosts that do get no new items,
the plan has no worker of the stage in use, its job has all workers of its quota, another job lacks
guaranteed workers or more of its weighted share, all workers of the stage have items."""

_PS_EXAMPLES = """\
  rlctl reward ps
  rlctl reward ps --json | jq .batches
  rlctl reward ps --url http://127.0.0.1:8900"""

_TAP_EXAMPLES = """\
  rlctl reward tap step-12/3/1
  rlctl reward tap math --url http://127.0.0.1:8900"""

KEY_ENV = "GLEANER_API_KEY"
URL_DEADLINE_S = 10.0
MOST_BYTES = 16 * 2**20
_STAGES = (
    Column("STAGE"),
    Column("WORKERS", right=True),
    Column("MOST", right=True),
    Column("PLANNED", right=True),
    Column("QUEUED", right=True),
    Column("RUNNING", right=True),
    Column("ITEM", right=True),
)
_HOSTS = (Column("HOST"), Column("WORKERS", right=True), Column("ITEMS", right=True), Column("NO NEW ITEMS"))
_BATCHES = (
    Column("BATCH"),
    Column("EXPECTED", right=True),
    Column("ARRIVED", right=True),
    Column("SCORED", right=True),
    Column("QUEUED", right=True),
    Column("RUNNING", right=True),
    Column("AGE", right=True),
    Column("DUE", right=True),
    Column("DELAY", right=True),
    Column("KIND"),
)
_JOBS = (
    Column("JOB"),
    Column("WEIGHT", right=True),
    Column("GUARANTEED", right=True),
    Column("QUEUED", right=True),
    Column("RUNNING", right=True),
    Column("SCORED", right=True),
    Column("WORKER TIME", right=True),
    Column("LOST", right=True),
    Column("REFUSED", right=True),
    Column("SICK", right=True),
)


def add(kinds: Subparsers) -> None:
    """Declare the two commands."""
    shown = add_command(
        kinds, "ps", ps, help="show stages, hosts and batches", description=_PS, examples=_PS_EXAMPLES
    )
    tapped = add_command(
        kinds, "tap", tap, help="show where one request is", description=_TAP, examples=_TAP_EXAMPLES
    )
    add_place(shown)
    tapped.add_argument("request", metavar="REQUEST", help="id of a request; with --url also a job")
    add_place(tapped)


def add_place(parser: argparse.ArgumentParser) -> None:
    """Declare where the reward tier is, and `--json`."""
    parser.add_argument(
        "--url",
        default="",
        metavar="URL",
        help=f"of a reward service (rlctl reward serve); its API key is in {KEY_ENV}",
    )
    add_cluster(parser)
    add_json(parser)


def ps(args: argparse.Namespace) -> int:
    """Run `rlctl reward ps`."""
    state = _asked(args)
    if args.json:
        print_json(state)
        return OK
    out = console()
    out.print(tables(state, out.width))
    return OK


def tables(state: RewardState, width: int, problem: str = "") -> Group:
    """All tables that have rows, a line apart. problem: why this state is not the newest, "" for none."""
    from rich.console import Group
    from rich.text import Text

    shown = (
        (_STAGES, stages(state)),
        (_HOSTS, hosts(state)),
        (_JOBS, jobs(state)),
        (_BATCHES, batches(state)),
    )
    drawn: list[Table | Text] = [Text(problem, style="red")] if problem else []
    for columns, rows in shown:
        if rows:
            drawn += [Text()] if drawn else []
            drawn.append(fitted(columns, rows, width))
    return Group(*drawn)


def tap(args: argparse.Namespace) -> int:
    """Run `rlctl reward tap`."""
    from gleaner.actors.reward.status import UNKNOWN

    item = _asked(args, args.request).item
    if item is None:
        raise nothing(f"the service at {args.url} is of an older version: it shows no requests")
    if args.json:
        print_json(item)
    else:
        console().print(line_of(item), markup=False)
    return NOTHING if item.state == UNKNOWN else OK


def stages(state: RewardState) -> list[Sequence[str]]:
    """The rows of the stages."""
    return [
        (
            one.name,
            str(one.workers),
            str(one.most),
            "-" if one.planned is None else str(one.planned),
            str(one.queued),
            str(one.running),
            "-" if one.item_s is None else f"{one.item_s:.3g} s",
        )
        for one in state.stages
    ]


def hosts(state: RewardState) -> list[Sequence[str]]:
    """The rows of the hosts."""
    return [
        (
            one.name,
            " ".join(f"{stage} {count}" for stage, count in one.workers.items()),
            str(one.items),
            Styled(", ".join(one.barred) or "-", "yellow" if one.barred else ""),
        )
        for one in state.hosts
    ]


def jobs(state: RewardState) -> list[Sequence[str]]:
    """The rows of the jobs, where several share the service."""
    return [
        (
            one.name,
            f"{one.weight:g}",
            str(one.guaranteed),
            str(one.queued),
            str(one.running),
            str(one.scored),
            age(sum(one.worker_s.values())),
            str(one.lost),
            str(one.refused),
            Styled(age(one.sick_for_s) if one.sick_for_s else "-", "red" if one.sick_for_s else ""),
        )
        for one in state.jobs
        if one.name
    ]


def batches(state: RewardState) -> list[Sequence[str]]:
    """The rows of the batches, the earliest first."""
    due_last = sorted(
        state.batches,
        key=lambda one: (one.complete_in_s is None, one.complete_in_s or 0.0),
    )
    return [
        (
            one.name,
            str(one.expected or "-"),
            str(one.arrived),
            str(one.scored),
            str(one.queued),
            str(one.running),
            age(one.age_s),
            "-" if one.complete_in_s is None else age(one.complete_in_s),
            "-" if one.tolerated_s is None else f"{one.tolerated_s:.2g} s",
            one.kind or "-",
        )
        for one in due_last
    ]


def line_of(item: ItemState) -> str:
    """Where the request is, as a sentence."""
    if not item.batch:
        return f"{item.request} {item.state}"
    batch = f"{item.batch}, job {item.job}," if item.job else item.batch
    tries = f", {item.attempts} attempts were lost" if item.attempts else ""
    if item.host:
        where = f"in {item.stage} on {item.host} for {age(item.for_s)}"
        return f"{item.request} of {batch} {item.state} {where}{tries}"
    why = f": {item.why}" if item.why else ""
    return (
        f"{item.request} of {batch} {item.state} for {item.stage} since {age(item.for_s)}, "
        f"{item.ahead} items are in front of it{tries}{why}"
    )


def _served(url: str, about: str) -> RewardState:
    """The state of a reward service. about: a request, or "" for none."""
    import os
    import urllib.parse
    import urllib.request
    from http.client import HTTPException

    import msgspec

    from gleaner.actors.protocol.reward import RewardState

    if not url.startswith(("http://", "https://")):
        raise usage(f"--url {url!r}: expected http://HOST:PORT")
    key = os.environ.get(KEY_ENV, "")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    query = f"?{urllib.parse.urlencode({'request': about})}" if about else ""
    request = urllib.request.Request(f"{url.rstrip('/')}/state{query}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=URL_DEADLINE_S) as answer:
            return msgspec.json.decode(answer.read(MOST_BYTES), type=RewardState)
    except (OSError, ValueError, HTTPException, msgspec.MsgspecError) as problem:
        hint = f"; set {KEY_ENV}" if "401" in str(problem) else ""
        raise nothing(f"no reward service answers at {url}: {problem}{hint}") from problem


def _asked(args: argparse.Namespace, request: str = "") -> RewardState:
    async def ask() -> RewardState:
        async with asking(args, request) as poll:
            return await poll()

    return run_async(ask())


@contextlib.asynccontextmanager
async def asking(
    args: argparse.Namespace, request: str = ""
) -> AsyncIterator[Callable[[], Awaitable[RewardState]]]:
    """A function that asks for the state, once a call. Raises CommandError, as its calls do."""
    if url := getattr(args, "url", ""):

        async def served() -> RewardState:
            return await asyncio.to_thread(_served, url, request)

        yield served
        return
    from gleaner.actors.names import REWARD
    from gleaner.actors.protocol.reward import RewardState, RewardStatus
    from gleaner.supervisor import AskFailed

    async with chosen_cluster(args) as cluster:

        async def asked() -> RewardState:
            try:
                return await cluster.ask(REWARD, RewardStatus(request=request), expect=RewardState)
            except AskFailed as problem:
                raise nothing(f"no job scores here now: {problem}") from problem

        yield asked

"""Routes of the reward service: each wire reads its body, asks for scores, writes its answer. Adapter."""

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from gleaner.actors.gateway.access import Kind
from gleaner.actors.gateway.ask import BadAsk
from gleaner.actors.gateway.calls import json, read_body, read_query
from gleaner.actors.gateway.metrics import Figures
from gleaner.actors.gateway.openapi import PATH, document
from gleaner.actors.protocol.reward import JOB_HEADER, RewardState
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward_service import client_jobs, sandbox_fusion, wires
from gleaner.actors.reward_service.asking import KnownTasks, Outage, Scored, Scoring, ScoringAsk
from gleaner.actors.reward_service.given_problems import task_of, with_label_as_tests
from gleaner.actors.reward_service.refusals import ERRORS
from gleaner.actors.reward_service.task_results import SubmittedTask, TaskResults
from gleaner.configs.schema import Gateway

TITLE = "Gleaner reward service"
MAX_WAIT_S = 60.0
"""Longest wait of one request for a result."""

Spawn = Callable[[Coroutine[object, object, Scored]], "asyncio.Task[Scored]"]


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """The objects that handlers use. spawn: runs a submitted task until the service ends. wall_s: the date,
    in seconds since 1970. new_id: makes the id of a submitted task. missing: why a language cannot be run
    here, "" if it can."""

    scoring: Scoring
    tasks: KnownTasks
    settings: Gateway
    spawn: Spawn
    wall_s: Callable[[], float]
    new_id: Callable[[], str]
    missing: Callable[[str], str]
    figures: Figures = field(default_factory=Figures)
    results: TaskResults = field(default_factory=TaskResults)


@dataclass(frozen=True, slots=True)
class ServiceRoute:
    """A row of the table of routes; see `gateway.calls.Route`."""

    method: str
    path: str
    does: Callable[[ServiceContext, web.Request], Awaitable[web.StreamResponse]]
    description: str
    body: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] | None = None
    answer: type[msgspec.Struct] | None = None
    kind: Kind = "data"
    many: bool = False
    status: int = 200
    down: type[msgspec.Struct] | None = None


async def slime(desk: ServiceContext, request: web.Request) -> web.StreamResponse:
    query = read_query(request, wires.SlimeQuery)
    if query.form not in ("number", "object"):
        raise BadAsk(f"expected number or object, got {query.form!r:.80}", "form")
    item = wires.of_slime(await read_body(request, wires.SlimeBody))
    (scored,) = await _scored(desk, request, query.task, [item])
    answer = wires.to_slime(scored, query.form)
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")


async def gleaner(desk: ServiceContext, request: web.Request) -> web.StreamResponse:
    body = await read_body(request, wires.GleanerBody)
    item = wires.of_gleaner(body)
    (scored,) = await _scored(desk, request, body.task, [item], named=body.batch or "")
    return json(wires.to_verl(scored))


async def batches(desk: ServiceContext, request: web.Request) -> web.StreamResponse:
    body = await read_body(request, wires.BatchBody)
    job = _job(request)
    if body.ended:
        return json(wires.BatchAnswer(batch=await desk.scoring.end(job, body.batch)))
    if not body.expected:
        raise BadAsk("expected the number of responses, 1 or more", "expected")
    name = await desk.scoring.announce(job, body.batch, body.expected, body.kind)
    return json(wires.BatchAnswer(batch=name))


async def tasks(desk: ServiceContext, request: web.Request) -> web.StreamResponse:
    return json(wires.TasksAnswer(tasks=desk.tasks.names))


async def openrlhf(desk: ServiceContext, request: web.Request) -> web.StreamResponse:
    query = read_query(request, wires.TaskQuery)
    items = wires.of_openrlhf(await read_body(request, wires.OpenRlhfBody))
    return json(wires.to_openrlhf(await _scored(desk, request, query.task, items)))


async def verl(desk: ServiceContext, request: web.Request) -> web.StreamResponse:
    query = read_query(request, wires.TaskQuery)
    body = await read_body(request, wires.VerlBody)
    (scored,) = await _scored(desk, request, query.task, [wires.of_verl(body)], own=body.data_source)
    return json(wires.to_verl(scored))


async def roll_submit(desk: ServiceContext, request: web.Request) -> web.StreamResponse:
    query = read_query(request, wires.TaskQuery)
    body = await read_body(request, wires.RollBody)
    if not 0 < body.timeout <= desk.settings.max_deadline_s:
        most_s = desk.settings.max_deadline_s
        raise BadAsk(f"expected seconds above 0 and up to {most_s:g}, got {body.timeout:g}", "timeout")
    entry, response = wires.of_roll(body)
    name = task_of(desk.tasks.names, query.task, body.reward_manager)
    ask = ScoringAsk(
        task=name,
        entry=_checked(desk, name, entry),
        response=response,
        batch=_batch(request, wires.batch_of_roll(body)),
        job=_job(request),
        deadline_s=body.timeout,
    )
    now_s = asyncio.get_running_loop().time
    desk.results.room(now_s())
    request_id = desk.new_id()
    task = SubmittedTask(ask.task, desk.spawn(desk.scoring.score(ask)), now_s(), desk.wall_s())

    def ended(done: "asyncio.Future[Scored]") -> None:
        task.ended_s = now_s()
        if not done.cancelled():
            done.exception()  # it is kept for the request for the result

    task.done.add_done_callback(ended)
    desk.results.add(request_id, task)
    return json(wires.RollSubmitted(reward_request_id=request_id))


async def roll_result(desk: ServiceContext, request: web.Request) -> web.StreamResponse:
    query = read_query(request, wires.RollQuery)
    if not query.reward_request_id:  # ROLL sends a body, also with GET
        query = await read_body(request, wires.RollQuery)
    if not 0 <= query.wait_s <= MAX_WAIT_S:
        raise BadAsk(f"expected seconds from 0 to {MAX_WAIT_S:g}, got {query.wait_s:g}", "wait_s")
    name = query.reward_request_id
    if not name:
        raise BadAsk("is required", "reward_request_id")
    task = desk.results.get(name)
    if query.wait_s:
        await asyncio.wait([task.done], timeout=query.wait_s)
    if not task.done.done():
        return json(wires.RollAnswer(errcode=wires.RUNNING, reward_request_id=name))
    took_s = max(task.ended_s - task.began_s, 0.0)
    return json(wires.to_roll(name, task.task, task.done.result(), task.wall_s, took_s))


async def run_code(desk: ServiceContext, request: web.Request) -> web.StreamResponse:
    ask = sandbox_fusion.of_sandbox_fusion(await read_body(request, sandbox_fusion.RunCodeBody))
    if why := desk.missing(ask.language):
        raise BadAsk(why, "language")
    return json(sandbox_fusion.to_sandbox_fusion(await desk.scoring.run(ask)))


async def health(desk: ServiceContext, request: web.Request) -> web.StreamResponse:
    return web.Response()


async def metrics(desk: ServiceContext, request: web.Request) -> web.StreamResponse:
    text = desk.figures.text(None, None)
    with contextlib.suppress(Outage):  # the figures of HTTP are there without the proxy
        text += client_jobs.metrics((await desk.scoring.state()).jobs)
    return web.Response(body=text, content_type="text/plain")


async def state(desk: ServiceContext, request: web.Request) -> web.StreamResponse:
    query = read_query(request, wires.StateQuery)
    return json(await desk.scoring.state(query.request))


async def _scored(
    desk: ServiceContext,
    request: web.Request,
    asked: str,
    items: Sequence[wires.Item],
    own: str = "",
    named: str = "",
) -> list[Scored]:
    """The scores of all items; the first that has none cancels the others. Raises what `Scoring` does."""
    batch, job = _batch(request), _job(request)
    task = task_of(desk.tasks.names, asked, own)
    asks = [
        ScoringAsk(
            task=task,
            entry=_checked(desk, task, entry),
            response=response,
            batch=batch,
            named=named,
            job=job,
            deadline_s=desk.settings.deadline_s,
        )
        for entry, response in items
    ]
    if len(asks) == 1:
        return [await desk.scoring.score(asks[0])]
    under_way = [asyncio.ensure_future(desk.scoring.score(ask)) for ask in asks]
    try:
        return list(await asyncio.gather(*under_way))
    finally:
        for one in under_way:
            one.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


def _checked(desk: ServiceContext, task: str, entry: Entry) -> Entry:
    """The problem as the verifier of a task can use it. Raises BadAsk."""
    problem = desk.tasks.check(task, entry)
    if not problem:
        return entry
    tested = with_label_as_tests(entry)
    if tested is not None and not desk.tasks.check(task, tested):
        return tested
    raise BadAsk(f"task {task} cannot score this problem: {problem}", "body")


def _job(request: web.Request) -> str:
    """The job that the request belongs to. Raises BadAsk."""
    return client_jobs.job_of(request.headers, request.remote or "")


def _batch(request: web.Request, own: str = "") -> str:
    """The key of the batch: the client's own, in what its API key and its job have."""
    shown = request.headers.get("Authorization") or request.headers.get("X-API-Key") or request.remote or ""
    job = request.headers.get(JOB_HEADER, "")
    return hashlib.blake2b(f"{shown}\0{own}\0{job}".encode("utf-8", "replace"), digest_size=8).hexdigest()


WIRES = (
    ServiceRoute(
        "POST", "/score", gleaner, "Gleaner: the verdict of a job's response.", wires.GleanerBody,
        answer=wires.ScoreAnswer,
    ),
    ServiceRoute(
        "POST", "/batches", batches, "Gleaner: a job's batch begins, or has ended.", wires.BatchBody,
        answer=wires.BatchAnswer,
    ),
    ServiceRoute(
        "POST", "/rm", slime, "slime: the score of a sample.", wires.SlimeBody, wires.SlimeQuery,
        wires.ScoreAnswer,
    ),
    ServiceRoute(
        "POST", "/get_reward", openrlhf, "OpenRLHF: the scores of queries.", wires.OpenRlhfBody,
        wires.TaskQuery, wires.OpenRlhfAnswer,
    ),
    ServiceRoute(
        "POST", "/compute_score", verl, "verl: as its `compute_score`.", wires.VerlBody, wires.TaskQuery,
        wires.ScoreAnswer,
    ),
    ServiceRoute(
        "POST", "/v1/submit_task", roll_submit, "ROLL: take a task.", wires.RollBody, wires.TaskQuery,
        wires.RollSubmitted,
    ),
    ServiceRoute(
        "POST", "/v1/task_result", roll_result, "ROLL: the result of a task.", wires.RollQuery,
        answer=wires.RollAnswer,
    ),
    ServiceRoute(
        "GET", "/v1/task_result", roll_result, "ROLL: the result of a task.", query=wires.RollQuery,
        answer=wires.RollAnswer,
    ),
    ServiceRoute(
        "POST", "/run_code", run_code, "SandboxFusion: run a program in a sandbox.",
        sandbox_fusion.RunCodeBody, answer=sandbox_fusion.RunCodeAnswer,
    ),
    ServiceRoute("GET", "/tasks", tasks, "The tasks of the settings.", answer=wires.TasksAnswer),
    ServiceRoute("GET", "/health", health, "Whether the service is up.", kind="open"),
    ServiceRoute(
        "GET", "/state", state, "Workers, and the jobs that share them.", query=wires.StateQuery,
        answer=RewardState, kind="control",
    ),
    ServiceRoute("GET", "/metrics", metrics, "Figures, in Prometheus' text format.", kind="control"),
)  # fmt: skip


async def described(desk: ServiceContext, request: web.Request) -> web.StreamResponse:
    return web.Response(body=_DOCUMENT, content_type="application/json")


ROUTES = (*WIRES, ServiceRoute("GET", PATH, described, "This document.", kind="open"))
_DOCUMENT = msgspec.json.encode(document(ROUTES, TITLE, ERRORS))

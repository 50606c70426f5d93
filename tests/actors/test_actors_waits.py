"""Unlisted waits of actors: the source of actors/ and nodeagent/ is searched for them.

Allowed without an entry below are awaits inside `async with ….wait(…)` (or `….waiting(…)`,
`asyncio.timeout(…)`), asks (the pending asks are listed), and `ctx.idle`, which marks an idle task. Every
other await needs an entry with a reason.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(path for folder in ("actors", "nodeagent") for path in (ROOT / folder).rglob("*.py"))

SCOPES = {"wait", "waiting", "_wait", "timeout", "timeout_at"}
"""Calls whose `async with` bounds, and mostly lists, the awaits inside."""

LISTED_BY_CALLER = "called inside the wait of its only caller"
IN_A_WORKER = "in a worker process, whose pool has a deadline for its answer"
ALLOWED = {
    ("nodeagent/node.py", "_wait_for"): "the imports of a fork server, for READY_S at most, or the stop",
    (
        "actors/cluster/local_hosts.py",
        "stop",
    ): "stops of processes, each bounded by SIGKILL; its callers wait",
    ("actors/engine/builtin_server/entry.py", "start"): "the life of a server, which ends with its actor",
    ("actors/engine/worker/served_weights.py", "_fetched"): LISTED_BY_CALLER,
    ("actors/engine/worker/served_weights.py", "_announced"): LISTED_BY_CALLER,
    ("actors/reward/blob_transfer.py", "_part"): LISTED_BY_CALLER,
    ("actors/reward/host.py", "_send"): LISTED_BY_CALLER,
    ("actors/reward/service_pool.py", "_begin_call"): "the end of a call; `StagePools` lists the verdict",
    ("actors/reward/pool.py", "_slot"): "a pause between two starts of workers, at most LONGEST_BACKOFF_S",
    ("actors/reward/scoring_queue.py", "answer"): "the proxy waits; tries and their deadlines bound it",
    ("actors/reward/verifiers/service_verifier.py", "tried"): IN_A_WORKER,
    ("actors/reward/verifiers/http_rewards.py", "_asked"): IN_A_WORKER,
    ("actors/reward/verifiers/judge/calls.py", "reserve"): IN_A_WORKER,
    ("actors/reward/verifiers/judge/calls.py", "_waited"): IN_A_WORKER,
    ("actors/reward/verifiers/judge/calls.py", "_first"): IN_A_WORKER,
    ("actors/reward/verifiers/own_function.py", "call_async"): IN_A_WORKER,
    ("actors/reward/verifiers/own_function.py", "_awaited"): IN_A_WORKER,
    ("actors/rollout/journal/journaled_state.py", "record"): "a commit: listed by the journal",
    ("actors/rollout/journal/journaled_state.py", "settled"): "a commit: listed by the journal",
    ("actors/rollout/journal/frame_intake.py", "acknowledge"): "a commit: listed by the journal",
    ("actors/rollout/batches/group_selection.py", "_decided"): "a commit: listed by the journal",
    ("actors/rollout/batches/scoring.py", "_ask_until_scored"): LISTED_BY_CALLER,
    ("actors/cluster/host_events.py", "_report"): LISTED_BY_CALLER,
    ("actors/weights/shards/assembly.py", "_fill"): LISTED_BY_CALLER,
    ("actors/weights/transfer/fetch.py", "run"): LISTED_BY_CALLER,
    ("actors/weights/transfer/fetch.py", "_find"): LISTED_BY_CALLER,
    (
        "actors/weights/transfer/pull_state.py",
        "finish",
    ): "the end of a pull that was cancelled; `Pulls` lists the pull",
    (
        "actors/engine/servers/host.py",
        "_follow",
    ): "`stall_watch` gives a hung server up",
    ("actors/engine/servers/stall_watch.py", "watch"): "the period of its looks",
    (
        "actors/engine/servers/host.py",
        "closed",
    ): "the end of its own tasks; a server that is killed has REAP_S",
    (
        "actors/engine/builtin_server/batch_loop.py",
        "progress",
    ): "a server's own: who called has a deadline, or left",
    ("actors/engine/builtin_server/batch_loop.py", "run"): "a server's own: it is idle",
    (
        "actors/engine/builtin_server/batch_loop.py",
        "turned",
    ): "a server's own: who called has a deadline, or left",
    (
        "actors/engine/builtin_server/control_routes.py",
        "_whole",
    ): "a server's own: weights are read whole, whoever left",
    ("actors/engine/builtin_server/generate_routes.py", "follow"): "a server's own: it ends with its client",
    ("actors/engine/builtin_server/process.py", "_first"): "a server's own: until somebody stops it",
    ("actors/engine/builtin_server/process.py", "serve"): "a server's own: until somebody stops it",
    ("actors/engine/worker/served_weights.py", "_not_loaded"): "a pause between two of at most LOAD_TRIES",
    (
        "actors/engine/servers/supervised_server.py",
        "begin",
    ): "between two looks; `serve_s` of the host bounds it",
    ("actors/rollout/dispatch/dispatcher.py", "_wake_later"): "the end of a hold, at most a minute away",
    (
        "actors/rollout/requests/token_followers.py",
        "_wake_later",
    ): "a pause between two tells, at most TELL_S",
    ("actors/gateway/follow.py", "read"): "a client's own wait: the request's deadline ends it",
    (
        "actors/gateway/gateway.py",
        "_ask",
    ): "a pause between two asks, within the request's deadline",
    ("actors/gateway/cancellation.py", "run"): "a pause between two tells of what nobody waits for",
    ("actors/training/absence.py", "follow"): "a pause between two looks for the next life of a name",
    ("actors/gateway/connections.py", "_watch"): "the period of its looks, while the server listens",
    ("actors/gateway/folder_weights.py", "fetch"): "a pause before the worker asks again",
    (
        "actors/cluster/local_hosts.py",
        "_let_go",
    ): "bounded by `timeout_in_turns`, which is no deadline of a wait",
    (
        "nodeagent/agent.py",
        "_tell_transfer",
    ): "between two asks of the transfer agent; no caller waits for it",
    ("nodeagent/agent.py", "_tell_unfit"): "between two tries to report; nobody waits for this",
    ("actors/gateway/own_fleet.py", "_renew"): "the period of renewals, while it is paused",
    ("actors/gateway/server.py", "beat"): "the period of heartbeats, while a client is there",
    ("actors/gateway/server.py", "events"): "a client's own wait: the request's deadline ends it",
    ("nodeagent/departure.py", "_drain"): "until the notice's end, or until it is taken back: it is idle",
    ("nodeagent/departure.py", "_stay"): "between two asks of the manager; nobody waits for this",
    ("nodeagent/standalone_gateway.py", "_serve"): "until somebody stops the process: it is idle",
    ("nodeagent/standalone_rewards.py", "_serve"): "until the process is stopped: it is idle",
    ("actors/reward_service/service.py", "_taken"): "pauses of less than a second between asks",
    ("nodeagent/notices/watcher.py", "_begin"): "the pauses between its first looks for a cloud",
    ("nodeagent/notices/watcher.py", "_follow"): "the period of its looks",
    ("nodeagent/head_lease.py", "_keep"): "the period of renewals; a timer ends the head when one is late",
    ("nodeagent/node.py", "_close"): LISTED_BY_CALLER,
    ("nodeagent/node.py", "run"): "until somebody stops the process: it is idle",
    ("nodeagent/process.py", "serve"): "until somebody stops the process: it is idle",
}


def suspicious(call: ast.Await) -> str:
    """The reason why this await may be an unlisted wait; "" for none."""
    awaited = call.value
    if isinstance(awaited, ast.Name | ast.Attribute):
        return f"awaits the future {ast.unparse(awaited)}"
    if not isinstance(awaited, ast.Call):
        return f"awaits {ast.unparse(awaited)}"
    name = ast.unparse(awaited.func)
    last = name.rsplit(".", 1)[-1]
    if name == "asyncio.sleep" and not (
        isinstance(awaited.args[0], ast.Constant) and awaited.args[0].value == 0
    ):
        return "sleeps"
    if last == "wait" and not awaited.args and not awaited.keywords:
        return f"waits by {name}()"
    if name == "asyncio.shield":
        return "waits behind a shield"
    if name == "asyncio.wait" and not any(keyword.arg == "timeout" for keyword in awaited.keywords):
        return "waits without a timeout"
    return ""


def awaits(node: ast.AST, function: str, covered: bool) -> Iterator[tuple[str, ast.Await, bool]]:
    """Every await below `node`, with its function and whether a wait is entered around it."""
    for child in ast.iter_child_nodes(node):
        inside, name = covered, function
        if isinstance(child, ast.AsyncFunctionDef | ast.FunctionDef):
            inside, name = False, child.name
        elif isinstance(child, ast.AsyncWith):
            calls = [item.context_expr for item in child.items if isinstance(item.context_expr, ast.Call)]
            inside = covered or any(ast.unparse(call.func).rsplit(".", 1)[-1] in SCOPES for call in calls)
        if isinstance(child, ast.Await):
            yield name, child, inside
        yield from awaits(child, name, inside)


def findings(source: str) -> list[tuple[str, int, str]]:
    """Function, line and reason of each unlisted await, and of each forbidden call."""
    tree = ast.parse(source)
    found = [
        (function, call.lineno, why)
        for function, call, covered in awaits(tree, "", False)
        if not covered and (why := suspicious(call))
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "asyncio.wait_for":
            found.append(("asyncio.wait_for", node.lineno, "may swallow a cancellation before Python 3.12"))
    return found


def test_every_actor_wait_is_listed_or_has_a_reason() -> None:
    silent = [
        f"{path.relative_to(ROOT)}:{line} ({function}): {why}"
        for path in FILES
        for function, line, why in findings(path.read_text())
        if (str(path.relative_to(ROOT)), function) not in ALLOWED
    ]
    assert not silent, "enter these by `async with ctx.wait(...)`, or give a reason here:\n" + "\n".join(
        silent
    )


def test_every_exception_is_still_needed() -> None:
    needed = {
        (str(path.relative_to(ROOT)), function)
        for path in FILES
        for function, _, _ in findings(path.read_text())
    }
    assert not set(ALLOWED) - needed


@pytest.mark.parametrize(
    "body",
    [
        "await self.event.wait()",
        "await asyncio.sleep(1.0)",
        "await committed",
        "await asyncio.wait([task])",
        "await asyncio.wait_for(self.event.wait(), 3)",
        "await asyncio.shield(task)",
    ],
)
def test_search_finds_unlisted_waits(body: str) -> None:
    assert findings(f"async def f(self):\n    {body}\n")


@pytest.mark.parametrize(
    "body",
    [
        "async with self.ctx.wait('a thing', on='you', deadline_s=1.0):\n        await self.event.wait()",
        "async with asyncio.timeout(1.0):\n        await self.event.wait()",
        "await self.ctx.idle(self.event)",
        "await self.ctx.ask(to, message, deadline_s=1.0, expect=Done)",
        "await asyncio.sleep(0)",
    ],
)
def test_search_ignores_listed_waits(body: str) -> None:
    assert not findings(f"async def f(self):\n    {body}\n")

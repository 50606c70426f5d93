"""Commands `nodeagent status|drain|stop`: find the agent, ask it, print, wait.

Owns what is printed. Every wait has an end.
"""

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gleaner.actors.protocol.cluster import PreemptionNotice, StopNode
from gleaner.nodeagent.client import inspect, tell_agent
from gleaner.nodeagent.exit_codes import FAILED, OK, USAGE, CannotRun
from gleaner.nodeagent.files import STANDBY, AgentFile, find_agent
from gleaner.nodeagent.state_lock import is_running
from gleaner.supervisor import AskFailed, Done, Message, Refused
from gleaner.supervisor.system_messages import ActorState, SystemState

ANSWER_S = 5.0
END_S = 40.0  # for an ordered end, beyond the deadline of a drain
POLL_S = 0.1


async def status(state_dir: Path, *, as_json: bool) -> int:
    """Show the agent, its children and its host."""
    agent = find_agent(state_dir)
    if agent.role == STANDBY:
        report = {"agent": msgspec.to_builtins(agent), "process": None}
        print(
            json.dumps(report) if as_json else f"{agent.node} (standby)  pid {agent.pid}  waits for the lease"
        )
        return OK
    try:
        state = await inspect(agent, ANSWER_S)
    except AskFailed as problem:
        raise _silent(agent, problem) from problem
    me = next((actor for actor in state.actors if actor.name == f"{agent.node}/agent"), None)
    if as_json:
        print(json.dumps({"agent": msgspec.to_builtins(agent), "process": msgspec.to_builtins(state)}))
        return OK
    figures = me.figures if me is not None else {}
    print(f"{agent.node} ({agent.role})  pid {agent.pid}  {agent.endpoint}")
    for key in ("state", "head", "job", "lacks", "cores", "memory_bytes", "gpus"):
        if key != "lacks" or key in figures:
            print(f"  {key:13} {figures.get(key, '?')}")
    notices = [actor.figures for actor in state.actors if actor.name == f"{agent.node}/notices"]
    if notices:
        print(f"  {'notices':13} {_notices(notices[0])}")
    print("\n".join(_table(state)))
    return OK


async def drain(state_dir: Path, deadline_s: float, *, as_json: bool) -> int:
    """Give the host notice and wait until it left."""
    if deadline_s < 0:
        raise CannotRun(USAGE, f"--deadline {deadline_s:g}: expected a number of seconds ≥ 0")
    return await _end(state_dir, PreemptionNotice(deadline_s=deadline_s), deadline_s, "drained", as_json)


async def stop(state_dir: Path, *, as_json: bool) -> int:
    """Stop the agent in order and wait until it ended."""
    return await _end(state_dir, StopNode(), 0.0, "stopped", as_json)


async def _end(state_dir: Path, message: Message, within_s: float, done: str, as_json: bool) -> int:
    agent = find_agent(state_dir)
    try:
        if agent.role == STANDBY:
            os.kill(agent.pid, signal.SIGTERM)
        else:
            await tell_agent(agent, message, Done, ANSWER_S)
    except Refused as refusal:
        raise CannotRun(FAILED, str(refusal)) from refusal
    except AskFailed as problem:
        raise _silent(agent, problem) from problem
    try:
        async with asyncio.timeout(within_s + END_S):
            while is_running(state_dir):  # noqa: ASYNC110 (the end of another process)
                await asyncio.sleep(POLL_S)
    except TimeoutError as problem:
        raise CannotRun(
            FAILED, f"{agent.node} (pid {agent.pid}) has not ended after {within_s + END_S:.0f} s"
        ) from problem
    print(json.dumps({"node": agent.node, "result": done}) if as_json else f"{agent.node}: {done}")
    return OK


def _silent(agent: AgentFile, problem: AskFailed) -> CannotRun:
    return CannotRun(
        FAILED, f"{agent.node} (pid {agent.pid}) at {agent.endpoint} does not answer: {problem}; see its log"
    )


def _notices(figures: Mapping[str, str | int | float]) -> str:
    """The state that the host's cloud reports, and the time of the last answer."""
    words = [str(figures.get("source", "?"))]
    if "looked_ago_s" in figures:
        words.append(f"reports {figures['says']}, asked {figures['looked_ago_s']} s ago")
    if figures.get("ends_in_s") is not None:
        words.append(f"{figures['ends_in_s']} s left")
    if figures.get("problem"):
        words.append(str(figures["problem"]))
    return "; ".join(words)


def _table(state: SystemState) -> list[str]:
    rows = [("CHILD", "PID", "STATE", "RESTARTS", "LAST FAILURE")]
    rows += [_row(actor) for actor in state.actors if actor.pid or actor.parent]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    ]


def _row(actor: ActorState) -> tuple[str, str, str, str, str]:
    pid = str(actor.pid) if actor.pid else "-"
    return (actor.name, pid, actor.state, str(actor.restarts), actor.last_failure or "-")

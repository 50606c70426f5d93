"""Key checks of `rlctl doctor`: own key, trusted keys and unencrypted traffic.

Owns the checks of key directories and of the node agents that run here. A running agent is asked for its
trusted keys, because they may be older than its files. Changes nothing.
"""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from gleaner.nodeagent.client import inspect
from gleaner.nodeagent.exit_codes import CannotRun
from gleaner.nodeagent.files import AgentFile, find_agent
from gleaner.rlctl.commands.terminal import run_async
from gleaner.rlctl.doctor import Row
from gleaner.rlctl.quantity_format import duration
from gleaner.supervisor import AskFailed
from gleaner.transport.keys import TRUSTED, BadKeys, NodeKeys, fingerprint, is_loopback
from gleaner.transport.trusted import key_directories, listed

ANSWER_S = 2.0
OTHERS_MAY_WRITE = 0o022

Figures = dict[str, str | int | float]


def examine_keys(
    folder: Path | None, state_dirs: list[Path], ask: Callable[[AgentFile], Figures | None] | None = None
) -> list[Row]:
    """Every row. folder: a key directory or a folder of several, None for those of the running agents;
    state_dirs: directories where agents may run."""
    agents = list(_running(state_dirs))
    if folder is not None:
        directories = list(key_directories(folder)) or [folder]  # a missing one is named
    else:
        directories = sorted({Path(agent.keys) for agent in agents if agent.keys})
    rows = [row for directory in directories for row in _directory(directory)]
    if not directories:
        rows = [Row("keys", "ok", "none: this host talks to itself alone; for more, rlctl keygen")]
    return rows + [row for agent in agents for row in _agent(agent, (ask or _figures)(agent))]


def _running(state_dirs: list[Path]) -> Iterator[AgentFile]:
    for state_dir in state_dirs:
        try:
            yield find_agent(state_dir)
        except CannotRun:
            continue  # no agent runs there


def _directory(directory: Path) -> Iterator[Row]:
    what = f"keys {directory}"
    try:
        keys = NodeKeys.load(directory)
    except BadKeys as problem:
        yield Row(what, "missing", "cannot be used", str(problem))
        return
    everyone = listed(directory)
    mode = stat.S_IMODE((directory / "node.secret").stat().st_mode)
    found = f"{fingerprint(keys.public)}, node.secret {mode:04o}, {len(everyone)} trusted"
    if everyone:
        found += f": {', '.join(one.name for one in everyone)}"
    open_ = [
        path
        for path in (directory, directory / TRUSTED, *(directory / TRUSTED).glob("*.public"))
        if path.exists() and path.stat().st_mode & OTHERS_MAY_WRITE
    ]
    if open_:
        todo = f"others may write {open_[0]} and so be trusted: chmod go-w {open_[0]}"
        yield Row(what, "warn", found, todo)
    elif not os.access(directory / TRUSTED, os.R_OK | os.X_OK):
        yield Row(what, "warn", found, f"{directory / TRUSTED} cannot be read: make it, or chmod it")
    else:
        yield Row(what, "ok", found)


def _agent(agent: AgentFile, figures: Figures | None) -> Iterator[Row]:
    """Keys and encryption in force at a running node agent."""
    if agent.keys:
        yield _allow_list(agent, figures)
    what = f"sockets of {agent.node}"
    if is_loopback(agent.endpoint):
        how = "CURVE" if agent.keys else "plain"
        yield Row(what, "ok", f"control and tokens {how}, weights plain: inside this host, {agent.endpoint}")
    elif agent.bulk == "loopback":
        yield Row(what, "ok", f"control and tokens CURVE, no weights are served: {agent.endpoint}")
    else:
        yield Row(
            what,
            "warn",
            f"control and tokens CURVE; weights plain TCP (signed, hashed), allowed by --bulk {agent.bulk}: "
            f"{agent.endpoint}",
            "weights can be read on that network: use a network that you trust",
        )


def _allow_list(agent: AgentFile, figures: Figures | None) -> Row:
    what = f"allow-list of {agent.node}"
    if figures is None:
        return Row(what, "warn", "the node agent does not answer", f"rlctl logs, or its log; pid {agent.pid}")
    changes, ago_s = figures.get("keys_changes", 0), float(figures.get("keys_changed_ago_s", 0.0))
    found = f"{figures.get('keys_trusted', '?')} trusted; "
    found += (
        f"changed {changes}x, last {duration(ago_s)} ago" if changes else f"as read {duration(ago_s)} ago"
    )
    problem = str(figures.get("keys_problem", ""))
    return Row(what, "warn" if problem else "ok", found, problem)


def _figures(agent: AgentFile) -> Figures | None:
    """Summary of the host's NodeAgent; None where it does not answer."""
    try:
        state = run_async(inspect(agent, ANSWER_S))
    except (AskFailed, BadKeys):
        return None
    return next((actor.figures for actor in state.actors if actor.name == f"{agent.node}/agent"), None)

"""Driver of a run, from its settings to its report: head, job, live view, audit.

Owns the order of the parts and how a run ends; each part has its own module. Every process is ended. A run
that did not finish can be resumed; only a finished one gets its `End` record.
"""

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from gleaner.actors.cluster.job import health_of
from gleaner.actors.names import SCHEDULER
from gleaner.actors.protocol.cluster import UNSCORED, UNSERVED, JobEnded, JobIs, JobSpec, JobStatus, SubmitJob
from gleaner.actors.training.history import End, HistoryFollower, HistoryWriter, Phase
from gleaner.configs.load import dump
from gleaner.configs.schema import Config
from gleaner.rlctl.audit.invariants import Violation, audit
from gleaner.rlctl.audit.run_files import gather
from gleaner.rlctl.client import Cluster, connect, connect_to_run
from gleaner.rlctl.errors import CommandError, failed, unscored, unserved
from gleaner.rlctl.head import Head, running_head
from gleaner.rlctl.interrupt import Interrupt, stopped
from gleaner.rlctl.live_view import Mode, announce, follow, show
from gleaner.rlctl.loggers.factory import open_sinks
from gleaner.rlctl.loggers.feed import Feed
from gleaner.rlctl.models import MadeModel, Preparation
from gleaner.rlctl.progress import Progress
from gleaner.rlctl.runs import RunDir
from gleaner.supervisor import AskFailed, Done, Refused, Suspended

SUBMIT_S = 60.0  # the scheduler starts the fleet before it answers
PROBE_S = 5.0  # for the head to answer before any file is made
STATUS_S = 5.0
STATUS_PERIOD_S = 0.5
WAIT_S = 3600.0  # for space on a full disk, for example
HEAD_SILENCES = 3.0
"""Multiple of the silence that ends any other child process: after this one the run has to be resumed."""
SILENT_S = 60.0  # longest time without an answer from the scheduler; its restart takes a second


@dataclass(frozen=True, slots=True)
class ExternalCluster:
    """An external cluster. state_dirs: where its hosts keep their journals, for the audit; database: the URL
    of the head's journals, where they are in one. Several heads: see `client.connect`."""

    endpoint: str
    head_key: str = ""
    keys: Path | None = None
    state_dirs: Sequence[Path] = ()
    database: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """The mode of the progress display."""

    mode: Mode
    out: TextIO


async def drive(
    run: RunDir,
    config: Config,
    view: View,
    elsewhere: ExternalCluster | None = None,
    model: Preparation | None = None,
) -> list[Violation]:
    """Run the job to its end; return the broken invariants, none when the run is sound. model: its making
    or check, which runs while the head starts; the job is submitted only after it.

    Raises CommandError: the job failed, the head ended, or the user stopped it (INTERRUPTED).
    """
    stop = Interrupt()
    stop.listen()
    job = JobSpec(
        run_id=run.id,
        run_dir=str(run.path),
        model_dir=config.model.path or str(run.model),
        config=dump(config),
    )
    viewer = _Viewer(run, view)
    loggers = _loggers(run, config)
    preparing = asyncio.create_task(asyncio.to_thread(model.run)) if model is not None else None
    if elsewhere is None:
        announce("head", view.mode, view.out)
    try:
        if loggers is not None:
            loggers.start()
        async with _cluster(run, config, elsewhere, stop) as cluster:
            await cluster.until(stop, _job_done(cluster.client, job, viewer, preparing))
        violations = _close_books(run, config, elsewhere)
        await viewer.finish()
        return violations
    finally:
        if model is not None and preparing is not None:
            model.cancel()
            await asyncio.gather(preparing, return_exceptions=True)
        await viewer.stop()
        if loggers is not None:
            await asyncio.to_thread(loggers.stop)


def _loggers(run: RunDir, config: Config) -> Feed | None:
    """The feed of the settings' loggers; None where there is none."""
    wanted = config.loggers
    if not (wanted.tensorboard or wanted.wandb):
        return None
    follower = HistoryFollower(run.history)
    follower.poll()  # before a resume: the loggers have these records
    return Feed(follower, lambda: open_sinks(run, config, wanted))


class _Driven:
    """A cluster that this run controls. `ended` is the cause of its head's end; None for an external
    cluster."""

    def __init__(self, client: Cluster, ended: "asyncio.Task[CommandError | None] | None") -> None:
        self.client = client
        self._ended = ended

    async def until(self, stop: asyncio.Event, work: Coroutine[object, object, None]) -> None:
        """Do `work`, unless the user stops it or the head ends first. Raises CommandError for those."""
        doing: asyncio.Task[CommandError | None] = asyncio.create_task(_no_problem(work))
        stopping: asyncio.Task[CommandError | None] = asyncio.create_task(_stopped(stop))
        watched = [doing, stopping, *([self._ended] if self._ended is not None else [])]
        try:
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done() and not doing.done() and self._ended is None:
                await _call_off(self.client)
            problem = next(task.result() for task in watched if task.done())
            if problem is not None:
                raise problem
        finally:
            doing.cancel()
            stopping.cancel()


async def _no_problem(work: Coroutine[object, object, None]) -> None:
    await work


async def _stopped(stop: asyncio.Event) -> CommandError:
    await stop.wait()
    return stopped()


@asynccontextmanager
async def _cluster(
    run: RunDir, config: Config, elsewhere: ExternalCluster | None, stop: Interrupt
) -> AsyncIterator[_Driven]:
    if elsewhere is not None:
        async with connect(elsewhere.endpoint, elsewhere.keys, head_key=elsewhere.head_key) as client:
            await stop.unless(client.probe())
            yield _Driven(client, None)
        return
    async with running_head(run, config) as head:
        stop.hurried(head.kill)
        await stop.unless(head.found())
        ended: asyncio.Task[CommandError | None] = asyncio.create_task(head.ended())
        try:
            async with connect_to_run(run) as client:
                checking = asyncio.create_task(_end_hung(head, client, config))
                try:
                    yield _Driven(client, ended)
                finally:
                    checking.cancel()
        finally:
            ended.cancel()


async def probe(elsewhere: ExternalCluster) -> None:
    """Whether that cluster's head answers. Raises CommandError, BadKeys."""
    async with connect(elsewhere.endpoint, elsewhere.keys, head_key=elsewhere.head_key) as client:
        await client.probe(PROBE_S)


async def _end_hung(head: Head, client: Cluster, config: Config) -> None:
    """Kill a head that no longer answers: the run then ends as after any other end of its head."""
    health = health_of(config, HEAD_SILENCES)
    if health is not None:
        head.kill(await client.head_hung(health, head.cpu_s))


async def _job_done(
    cluster: Cluster, job: JobSpec, viewer: "_Viewer", preparing: "asyncio.Task[MadeModel] | None"
) -> None:
    """Submit the job, when its model is ready, and wait for its end. Raises CommandError where it fails."""
    if preparing is not None:
        await preparing
    try:
        state = await cluster.ask(SCHEDULER, SubmitJob(job=job), expect=JobIs, deadline_s=SUBMIT_S)
    except Refused as refusal:
        raise failed(f"the cluster refused the job: {refusal}") from refusal
    except AskFailed as problem:
        raise failed(f"the cluster at {cluster.head.endpoint} did not take the job: {problem}") from problem
    viewer.start()
    silent_s = waited_s = 0.0
    last_shown = ""
    while state.state == "running":
        await asyncio.sleep(STATUS_PERIOD_S)
        try:
            state = await cluster.ask(SCHEDULER, JobStatus(), expect=JobIs, deadline_s=STATUS_S)
            silent_s, waits_for = 0.0, state.reason if state.state == "running" else ""
        except Suspended as problem:
            silent_s, waits_for = 0.0, str(problem)
        except AskFailed as problem:
            waits_for = last_shown
            silent_s += STATUS_PERIOD_S + STATUS_S
            if silent_s > SILENT_S:
                raise failed(f"the scheduler has been silent for {silent_s:.0f} s: {problem}") from problem
        if waits_for and not last_shown:
            sys.stderr.write(f"the job waits: {waits_for}\n")
        elif last_shown and not waits_for:
            sys.stderr.write("the job goes on\n")
        waited_s = waited_s + STATUS_PERIOD_S if waits_for else 0.0
        last_shown = waits_for
        if waited_s > WAIT_S:
            raise failed(f"the job waited for {waited_s / 60:.0f} minutes: {waits_for}")
    if state.state != "done":
        ended = {UNSERVED: unserved, UNSCORED: unscored}.get(state.cause, failed)
        raise ended(f"the job {state.state}: {state.reason or 'no reason was given'}")


async def _call_off(cluster: Cluster) -> None:
    """Release the job's hosts of an external cluster, which keeps running."""
    with contextlib.suppress(AskFailed):
        ended = JobEnded(ok=False, reason="stopped on request")
        await cluster.ask(SCHEDULER, ended, expect=Done, deadline_s=STATUS_S)


def _close_books(run: RunDir, config: Config, elsewhere: ExternalCluster | None) -> list[Violation]:
    """Audit the stopped run and write its end into its history."""
    state_dirs = elsewhere.state_dirs if elsewhere is not None else ()
    database = elsewhere.database if elsewhere is not None else ""
    writer = HistoryWriter(run.history)
    writer.write(Phase(t_s=writer.last_t_s, phase="audit"))
    evidence = gather(run.path, config, complete=True, state_dirs=state_dirs, database=database)
    violations = audit(evidence)
    counters = evidence.counters
    writer.write(
        End(
            t_s=writer.last_t_s,
            tokens_collected=counters.tokens_collected if counters else 0,
            tokens_lost=evidence.tokens_lost,
            tokens_generated_twice=counters.tokens_generated_twice if counters else 0,
            requests_migrated=counters.requests_migrated if counters else 0,
            ok=not violations,
            violations=[str(violation) for violation in violations],
            unchecked=sum(not violation.checked for violation in violations),
            wasted=dict(counters.tokens_wasted) if counters else {},
            verdicts=dict(counters.verdicts) if counters else {},
            failure=counters.failure if counters else "",
        )
    )
    writer.close()
    return violations


class _Viewer:
    """The live view, on a thread of its own: it waits with `sleep`."""

    def __init__(self, run: RunDir, view: View) -> None:
        self._view = view
        self._follower = HistoryFollower(run.history)
        self._known = Progress()
        for record in self._follower.poll():  # before a resume
            self._known.observe(record)
        self._over = threading.Event()
        self._showing: asyncio.Task[Progress] | None = None

    def start(self) -> None:
        records = follow(self._follower, lambda: not self._over.is_set(), sleep=self._over.wait)
        self._showing = asyncio.create_task(
            asyncio.to_thread(show, records, self._view.mode, self._view.out, self._known)
        )

    async def finish(self) -> None:
        """Show the end. A closed pipe does no harm to the run."""
        if self._showing is not None:
            with contextlib.suppress(BrokenPipeError):
                await self._showing

    async def stop(self) -> None:
        """Close the view."""
        self._over.set()
        await self.finish()

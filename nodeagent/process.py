"""Child process of a node agent: `python -m gleaner.nodeagent.process KIND ...`.

Owns nothing but the order: die with the parent, open the host, run the tree of its kind, stop in order on
SIGTERM, leave when its supervisor gives up, with exit code 7 and the chain of causes.
"""

from gleaner.supervisor.process import die_with_parent

if __name__ == "__main__":
    die_with_parent()  # before the imports below: they take a second, and the parent may be killed meanwhile

import asyncio
import contextlib
import logging
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from gleaner.actors.cluster.job import config_of
from gleaner.nodeagent.exit_codes import FAILED, OK, CannotRun, NoSpace, as_cannot_run
from gleaner.nodeagent.files import ProcessFile
from gleaner.nodeagent.host import Bounds, run_process
from gleaner.nodeagent.host_services import HostServices, RealHostServices
from gleaner.nodeagent.process_arguments import ChildCommand, parse
from gleaner.nodeagent.process_trees import ProcessContext, tree_of
from gleaner.nodeagent.restarts import RestartReporter
from gleaner.nodeagent.shutdown import Shutdown
from gleaner.nodeagent.system import open_system
from gleaner.supervisor import Supervisor

LOOK_S = 1.0  # between two checks whether a full disk has space again
SAY_AGAIN_S = 60.0  # that it waits for that

log = logging.getLogger("nodeagent")


async def serve(order: ChildCommand, stop: Shutdown, services: HostServices) -> int:
    """Run the tree of a kind until `stop`, or until it gives up. The exit code.

    Raises CannotRun, ConfigError, BadKeys, RefusedToListen, CannotListen, JournalError.
    """
    kind, location = order.kind, order.location
    await _written(lambda: services.prepare(location.state_dir), services, stop)
    job = services.read_job(order.job_file)
    location = replace(location, job=job.run_id)
    config = config_of(job)
    bounds = Bounds.of(config)
    services.open_log(location, bounds.log_bytes)
    services.adapters.prepare(kind, config)
    make_tree = tree_of(kind)
    assert make_tree is not None, "its command line was parsed"
    spec = make_tree(
        ProcessContext(job, config, location.node, services.adapters, location.datacenter, order.launch)
    )
    failures: list[Exception] = []

    def gave_up(problem: Exception) -> None:
        failures.append(problem)
        stop.set()

    def started(task: asyncio.Task[None]) -> None:
        problem = None if task.cancelled() else task.exception()
        if isinstance(problem, Exception):
            gave_up(problem)

    tracer = services.open_tracer(config.traces, location, bounds.log_bytes)
    async with open_system(location, bounds, services) as system:
        system.tracer = tracer
        local = system.wire.local
        own = ProcessFile(endpoint=local.endpoint, public_key=local.public_key, pid=system.machine.pid)
        await _written(lambda: services.publish_process(location.state_dir, kind, own), services, stop)
        log.info("%s of job %s listens at %s", kind, job.run_id, local.endpoint)
        reporter = RestartReporter(system)
        tree = Supervisor(system, spec, on_failure=gave_up, on_restart=reporter)
        # In parallel: an actor may take long to start (it loads, it asks), and a stop must not wait for that.
        starting = asyncio.get_running_loop().create_task(tree.start())
        starting.add_done_callback(started)
        await stop.wait()
        reporter.close()
        await tree.stop()
    if tracer is not None:
        await tracer.close()
    if failures:
        raise as_cannot_run(failures[0]) or CannotRun(FAILED, str(failures[0]))
    log.info("stopped in order")
    return OK


async def _written(write: Callable[[], None], services: HostServices, stop: Shutdown) -> None:
    """Write into the state directory as soon as its disk has space, or `stop` is set. A process that starts
    while its disk is full waits here: an exit and a restart would only use up the restarts of its supervisor,
    and fail the job. It has no actors yet, so it reports the reason on standard error. Raises CannotRun where
    waiting does not help.
    """
    loop = asyncio.get_running_loop()
    told_s = -math.inf
    while True:
        try:
            write()
            return
        except NoSpace as full:
            if stop.is_set():
                raise
            if loop.time() - told_s >= SAY_AGAIN_S:
                told_s = loop.time()
                services.say(f"waiting: {full}")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await stop.wait()


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    order = parse(argv, os.environ)
    name = f"{order.location.node}/{order.kind}"
    return run_process(lambda stop: serve(order, stop, RealHostServices()), name)


if __name__ == "__main__":
    exit_code = main()
    logging.shutdown()
    # All is closed and on disk; to tear torch's libraries down would take seconds of the host's notice.
    os._exit(exit_code)

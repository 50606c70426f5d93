"""Job file: a job's description, written by a node agent, read by its children."""

from pathlib import Path

import msgspec

from gleaner.actors.protocol.cluster import JobSpec
from gleaner.nodeagent.exit_codes import USAGE, CannotRun
from gleaner.nodeagent.files import write_whole


def job_file(state_dir: Path) -> Path:
    """Path of the job file."""
    return state_dir / "job.json"


def write_job(path: Path, job: JobSpec) -> None:
    """Write the job's description. Raises OSError."""
    write_whole(path, msgspec.json.encode(job))


def read_job(path: Path) -> JobSpec:
    """The job that a node agent wrote for its children. Raises CannotRun."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=JobSpec)
    except OSError as problem:
        raise CannotRun(USAGE, f"{path}: {problem.strerror}; the node agent writes it") from problem
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise CannotRun(USAGE, f"{path}: not a job: {problem}") from problem

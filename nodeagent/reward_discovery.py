"""The reward service of this host: where jobs find it that share it by `reward.share.with = "cluster"`.

Owns the file with its URL, which is there while the service runs. A variable of the environment names one on
another host.
"""

import contextlib
import json
import os
import urllib.error
import urllib.request
from pathlib import Path

import msgspec

from gleaner.configs.schema import Config
from gleaner.nodeagent.files import make_private, state_base

VARIABLE = "GLEANER_REWARD_SERVICE"
CLUSTER = "cluster"
ASK_S = 5.0


class NoService(LookupError):
    """No reward service is known, or it cannot score this job; the text gives the remedy."""


class _Running(msgspec.Struct, frozen=True):
    """The file's content. pid: of the service."""

    url: str
    pid: int


def publish(url: str) -> None:
    """The service of this process listens at this URL. Raises OSError."""
    make_private(_file().parent)
    made = _file().with_suffix(f".{os.getpid()}")
    made.write_bytes(msgspec.json.encode(_Running(url=url, pid=os.getpid())))
    made.replace(_file())


def withdraw() -> None:
    """The service of this process has ended; the file of another one stays."""
    with contextlib.suppress(OSError):
        if (known := _read()) is not None and known.pid == os.getpid():
            _file().unlink()


def found() -> str:
    """The URL of the service that jobs of this host share. Raises NoService."""
    if url := os.environ.get(VARIABLE, "").strip():
        return url
    known = _read()
    if known is None or not Path(f"/proc/{known.pid}").exists():
        raise NoService(
            "reward.share.with: no reward service runs on this host: start one (rlctl reward serve), or "
            f"name one by {VARIABLE}=http://HOST:PORT"
        )
    return known.url


def resolved(config: Config) -> Config:
    """The settings with the URL of the service in the place of `cluster`. Raises NoService."""
    share = config.reward.share
    if share.with_ != CLUSTER:
        return config
    reward = msgspec.structs.replace(config.reward, share=msgspec.structs.replace(share, with_=found()))
    return msgspec.structs.replace(config, reward=reward)


def require_tasks(config: Config) -> None:
    """The service knows the tasks of a job. Raises NoService."""
    share = config.reward.share
    key = os.environ.get(share.key_env, "") if share.key_env else ""
    request = urllib.request.Request(f"{share.with_.rstrip('/')}/tasks")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=ASK_S) as answer:
            known = json.loads(answer.read(2**20))["tasks"]
    except urllib.error.HTTPError as problem:
        raise NoService(
            f"reward.share: {share.with_} answered {problem.code}"
            + (": set reward.share.key_env to the variable with its API key" if problem.code == 401 else "")
        ) from problem
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise NoService(f"reward.share: {share.with_} cannot be used: {problem}") from problem
    missing = [task.name for task in config.task if task.name not in known]
    if missing:
        raise NoService(
            f"reward.share: {share.with_} has no task named {', '.join(missing)}; it has {', '.join(known)}"
        )


def _file() -> Path:
    return state_base() / "reward-service.json"


def _read() -> _Running | None:
    try:
        return msgspec.json.decode(_file().read_bytes(), type=_Running)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None

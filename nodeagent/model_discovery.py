"""Models that gateways of this host serve: where a job finds its judge by `reward.judge.place = "instances"`.

Owns a file for each standalone gateway, which is there while it serves. A variable of the environment names
gateways on other hosts.
"""

import contextlib
import os
from pathlib import Path

import msgspec

from gleaner.configs.schema import Config
from gleaner.nodeagent.files import make_private, state_base

VARIABLE = "GLEANER_JUDGE"


class NoModel(LookupError):
    """No gateway is known that serves the judge's model; the text gives the remedy."""


class _Serving(msgspec.Struct, frozen=True):
    """A file's content. pid: of the gateway."""

    url: str
    model: str
    pid: int


def publish(url: str, model: str) -> None:
    """The gateway of this process serves a model at this URL. Raises OSError."""
    file = _folder() / f"{os.getpid()}.json"
    make_private(file.parent)
    serving()  # removes what gateways left that were killed
    made = file.with_suffix(".new")
    made.write_bytes(msgspec.json.encode(_Serving(url=url, model=model, pid=os.getpid())))
    made.replace(file)


def withdraw() -> None:
    """The gateway of this process has ended."""
    with contextlib.suppress(OSError):
        (_folder() / f"{os.getpid()}.json").unlink()


def serving() -> list[tuple[str, str]]:
    """URLs of the gateways that run on this host, each with its model. Files of others are removed."""
    found = []
    for file in sorted(_folder().glob("*.json")):
        try:
            known = msgspec.json.decode(file.read_bytes(), type=_Serving)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            continue
        if Path(f"/proc/{known.pid}").exists():
            found.append((known.url, known.model))
        else:
            with contextlib.suppress(OSError):
                file.unlink()
    return found


def with_judge(config: Config) -> Config:
    """The settings with the URLs of the gateways that serve the judge's model, where a task has a judge among
    instances and no URL is given. Raises NoModel."""
    judge = config.reward.judge
    judged = any(task.verifier == "judge" or task.judge.weight for task in config.task)
    if not judged or judge.place != "instances" or judge.url or config.reward.share.with_:
        return config
    first, *others = [f"{url.rstrip('/')}/v1" for url in _urls(judge.model)]
    judge = msgspec.structs.replace(judge, url=first, replicas=[*others, *judge.replicas])
    return msgspec.structs.replace(config, reward=msgspec.structs.replace(config.reward, judge=judge))


def _urls(model: str) -> list[str]:
    if named := [url.strip() for url in os.environ.get(VARIABLE, "").split(",") if url.strip()]:
        return named
    known = serving()
    if urls := [url for url, served in known if served == model]:
        return urls
    others = ", ".join(sorted({served for _, served in known})) or "none"
    raise NoModel(
        f"reward.judge.place: no gateway on this host serves {model!r}, they serve {others}: start one "
        f"(rlctl gateway --set gateway.model_name={model} --engine-url URL), or name one by "
        f"{VARIABLE}=http://HOST:PORT"
    )


def _folder() -> Path:
    return state_base() / "models"

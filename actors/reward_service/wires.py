"""Bodies of slime, OpenRLHF, verl and ROLL, and their translation to items and from scores. Pure.

Sources: slime `rm_hub`, OpenRLHF `remote_rm_url`, verl `compute_score`, ROLL
`remote_reward_system_worker.py`. `gleaner.actors.reward.verifiers.http_wires` is the other end of each.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from gleaner.actors.gateway.ask import BadAsk
from gleaner.actors.protocol.reward import BATCH_NAME
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward_service.asking import Scored, TooLong
from gleaner.actors.reward_service.client_batches import MOST_NAMED_ITEMS
from gleaner.actors.reward_service.given_problems import (
    MAX_ENTRY_BYTES,
    entry_of,
    entry_of_row,
    packed,
    response_of,
)

MAX_ITEMS = 1024
"""Of one request."""
DONE, RUNNING = 0, 1
"""ROLL's `errcode`."""

BatchName = Annotated[str, msgspec.Meta(pattern=BATCH_NAME)]
"""Of a client's batch, in its job: 1 to 100 letters, digits or ._-."""
BatchKind = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{0,20}\Z")]
"""Of a batch, beside its name: up to 20 letters, digits or ._-."""

Item = tuple[Entry, str]
"""A problem, and the response to it."""


class TaskQuery(msgspec.Struct, kw_only=True):
    """task: name of a task of the settings; needed where there are several."""

    task: str = ""


class SlimeQuery(TaskQuery, kw_only=True):
    """form: "number" for the score alone, "object" for score, status and detail."""

    form: str = "number"


class SlimeBody(msgspec.Struct, kw_only=True):
    """slime's sample. prompt: a text or messages. info: further data of the problem, such as its tests."""

    prompt: Any
    response: str
    label: Any = None
    info: dict[str, Any] | None = None


class StateQuery(msgspec.Struct, kw_only=True):
    """request: id of an item whose state is asked too, or a job, for its item that waits longest."""

    request: str = ""


class TasksAnswer(msgspec.Struct, kw_only=True):
    """The tasks of the settings, by name."""

    tasks: list[str]


class ScoreAnswer(msgspec.Struct, kw_only=True):
    """score: of the response. status: "ok", or what its program did ("timeout", "crashed", ...)."""

    score: float
    status: str
    detail: str = ""


class GleanerBody(msgspec.Struct, kw_only=True):
    """A response of a job of Gleaner. task: of the settings. problem: as the job's data has it. batch: the
    responses that one training step of the job waits for; without it, those that are open together."""

    task: str
    problem: Entry
    response: str
    batch: BatchName | None = None


class BatchBody(msgspec.Struct, kw_only=True):
    """A batch of a job begins, or has ended. batch: its name, as in `/score`. expected: about how many
    responses it will have; ended: no verdict of it is needed any more. kind: batches of other kinds are not
    like it, whatever their names."""

    batch: BatchName
    expected: Annotated[int, msgspec.Meta(ge=0, le=MOST_NAMED_ITEMS)] = 0
    ended: bool = False
    kind: BatchKind = ""


class BatchAnswer(msgspec.Struct, kw_only=True):
    """batch: its name in `/state`."""

    batch: str


class OpenRlhfBody(msgspec.Struct, kw_only=True):
    """query: each prompt with its response behind it. infos: further data of each problem."""

    query: list[str]
    prompts: list[str]
    labels: list[Any] | None = None
    infos: list[dict[str, Any] | None] | None = None


class OpenRlhfAnswer(msgspec.Struct, kw_only=True):
    """rewards, scores: the same numbers, in the order of the queries. extra_logs: whether each status is
    "ok"."""

    rewards: list[float]
    scores: list[float]
    extra_logs: dict[str, list[float]]


class VerlBody(msgspec.Struct, kw_only=True):
    """The arguments of verl's `compute_score`. data_source: the task, where one has that name."""

    solution_str: str
    data_source: str = ""
    ground_truth: Any = None
    extra_info: dict[str, Any] | None = None


class RollBody(msgspec.Struct, kw_only=True):
    """ROLL's task. reward_manager: the task of the settings, where one has that name. experiment_id,
    global_step: the batch. reward_info: the problem's other columns, as in a row of data. timeout: seconds
    for the verdict."""

    prompt: Any = None
    response: str
    reward_info: dict[str, Any] | None = None
    reward_manager: str = ""
    experiment_id: str | int = ""
    global_step: str | int = ""
    timeout: float = 300.0


class RollSubmitted(msgspec.Struct, kw_only=True):
    """The id to ask for the result with."""

    reward_request_id: str
    errcode: int = DONE
    errmsg: str = ""


class RollQuery(msgspec.Struct, kw_only=True):
    """wait_s: seconds to wait for the result, where it is not there yet."""

    reward_request_id: str = ""
    wait_s: float = 0.0


class RollAnswer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """errcode: 0 done, 1 under way. dimention_reward_score: by the name of the task; the spelling is ROLL's.
    start_time, end_time: seconds since 1970."""

    errcode: int
    reward_request_id: str
    errmsg: str = ""
    reward_score: float | None = None
    dimention_reward_score: dict[str, Any] = {}
    start_time: float = 0.0
    end_time: float = 0.0


def of_slime(body: SlimeBody) -> Item:
    """Raises BadAsk, TooLong."""
    response = response_of(body.response, "response")
    return entry_of(body.prompt, body.label, body.info), response


def of_gleaner(body: GleanerBody) -> Item:
    """Raises TooLong."""
    size_bytes = len(packed(body.problem))
    if size_bytes > MAX_ENTRY_BYTES:
        raise TooLong("problem", size_bytes, MAX_ENTRY_BYTES)
    return body.problem, response_of(body.response, "response")


def to_slime(scored: Scored, form: str) -> float | ScoreAnswer:
    """The number, or the object."""
    return scored.score if form == "number" else to_verl(scored)


def of_openrlhf(body: OpenRlhfBody) -> list[Item]:
    """The problem and response of each query. Raises BadAsk, TooLong."""
    count = len(body.query)
    if not 1 <= count <= MAX_ITEMS:
        raise BadAsk(f"expected 1 to {MAX_ITEMS} texts, got {count}", "query")
    labels = _as_many("labels", body.labels, count)
    infos = _as_many("infos", body.infos, count)
    _as_many("prompts", body.prompts, count)
    items: list[Item] = []
    for at, (query, prompt) in enumerate(zip(body.query, body.prompts, strict=True)):
        _, there, response = query.partition(prompt) if prompt else ("", "", query)
        if prompt and not there:
            raise BadAsk(
                f"query {at} does not hold its prompt, so its response cannot be told apart", "query"
            )
        items.append((entry_of(prompt, labels[at], infos[at]), response_of(response, f"query {at}")))
    return items


def to_openrlhf(scored: Sequence[Scored]) -> OpenRlhfAnswer:
    """The answer for all of them."""
    scores = [one.score for one in scored]
    ok = [float(one.status == "ok") for one in scored]
    return OpenRlhfAnswer(rewards=scores, scores=scores, extra_logs={"status_ok": ok})


def of_verl(body: VerlBody) -> Item:
    """The prompt is that of `extra_info`, if it has one. Raises BadAsk, TooLong."""
    response = response_of(body.solution_str, "solution_str")
    info = body.extra_info or {}
    prompt = next((info[name] for name in ("prompt", "question") if info.get(name)), None)
    return entry_of(prompt, body.ground_truth, info), response


def to_verl(scored: Scored) -> ScoreAnswer:
    """The dictionary of `compute_score`."""
    return ScoreAnswer(score=scored.score, status=scored.status, detail=scored.detail)


def of_roll(body: RollBody) -> Item:
    """Raises BadAsk, TooLong."""
    response = response_of(body.response, "response")
    return entry_of_row({**(body.reward_info or {}), "prompt": body.prompt}), response


def batch_of_roll(body: RollBody) -> str:
    """The batch that a task belongs to, "" for one without experiment and step."""
    if body.experiment_id == "" and body.global_step == "":
        return ""
    return f"{body.experiment_id}/{body.global_step}"


def to_roll(name: str, task: str, scored: Scored, start_s: float, took_s: float) -> RollAnswer:
    """The result of a task. start_s: date; took_s: seconds."""
    plugin = {"time_cost": took_s, "status": scored.status, "detail": scored.detail}
    return RollAnswer(
        errcode=DONE,
        reward_request_id=name,
        reward_score=scored.score,
        dimention_reward_score={task: {"score": scored.score, "debug_info": {task: plugin}}},
        start_time=start_s,
        end_time=start_s + took_s,
    )


def _as_many(field: str, values: Sequence[Any] | None, count: int) -> Sequence[Any]:
    if values is None:
        return [None] * count
    if len(values) != count:
        raise BadAsk(f"expected {count}, as many as queries, got {len(values)}", field)
    return values

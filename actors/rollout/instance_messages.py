"""What is said between the manager and its instances, and of them: registration, weights, work, leaving."""

from typing import ClassVar

import msgspec

from actors.rollout.device import Device
from actors.rollout.expert_messages import ExpertsWanted
from actors.rollout.messages import Weights
from actors.rollout.sampling_params import Sampling
from supervisor import Address, Message


class ListInstances(Message, frozen=True):
    """To the manager: asks which instances have registered, and what is served."""

    QUESTION: ClassVar[bool] = True


class InstanceIs(msgspec.Struct, frozen=True, kw_only=True):
    """A registered instance: version of its weights, None before it proved one; requests that wait on it and
    that it executes. leaving: for good."""

    name: str
    incarnation: int
    kind: str
    version: int | None
    pending: int
    executing: int
    leaving: bool


class FailedVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version that instances could not load, and why."""

    version: int
    why: str


class InstancesAre(Message, frozen=True):
    """In the order of their names. published: the newest version, None for none. queued: requests that wait
    for an instance. failed: versions that instances could not load, ascending; the newest of them."""

    instances: list[InstanceIs]
    published: int | None
    queued: int
    failed: list[FailedVersion] = []


class RegisterInstance(Message, frozen=True):
    """To the manager, from a worker at its start and whenever it lost the manager.

    `received`: the highest ticket that reached it; later ones were lost on the way and go elsewhere.
    `engines`: copies of the model that serve side by side in it; `slots`, `cache_tokens` (0: what the slots
    may need): of each of them. `device`: what it shares with other instances; None: nothing.
    """

    instance: str
    worker: Address
    kind: str
    slots: int
    received: int
    engines: int = 1
    cache_tokens: int = 0
    device: Device | None = None


class Registered(Message, frozen=True):
    """Where to stream, and what to serve. `epoch` names this registration: dispatches of others are void."""

    manager: Address
    epoch: str
    stream_endpoint: str
    stream_key: str
    weights: Weights | None = None


class StillRegistered(Message, frozen=True):
    """To the manager, from a worker that has heard nothing: does this registration count? Refused if not.

    A worker that hung may have been given up meanwhile, and no broken link tells it so.
    """

    instance: str
    incarnation: int
    epoch: str


class ServeWeights(Message, frozen=True):
    """To a worker: serve this version from now on."""

    weights: Weights


class Pulled(msgspec.Struct, frozen=True, array_like=True):
    """How a version came to a host: bytes that were pulled, of an image of so many; by so many deltas, 0 for
    whole."""

    nbytes: int
    image_bytes: int
    deltas: int


class Serving(Message, frozen=True):
    """To the manager: this instance proved to serve these weights. pulled: None where they were here."""

    instance: str
    incarnation: int
    version: int
    root: bytes
    pulled: Pulled | None = None


class NotLoaded(Message, frozen=True):
    """To the manager: this instance could not load these weights. What is it to do now? `died`: its engine
    did not outlive the load; then nobody waits for the answer, and the news of its end may be there first."""

    QUESTION: ClassVar[bool] = True

    instance: str
    incarnation: int
    kind: str
    version: int
    root: bytes
    why: str
    died: bool = False


class ServeNow(Message, frozen=True):
    """The weights to serve: the same ones are to be tried again; None: there are none for now."""

    weights: Weights | None


class KeepRequests(Message, frozen=True):
    """To the manager, from an instance that has loaded these weights, stands still with these tickets, and
    whose stream is acknowledged to its last row: which of them may it go on with?"""

    QUESTION: ClassVar[bool] = True

    instance: str
    incarnation: int
    version: int
    root: bytes
    tickets: list[int]


class RequestsKept(Message, frozen=True):
    """What comes of these tickets from now on counts as made by the newer weights. The others are to end."""

    tickets: list[int]


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One dispatch: continue `prompt` + `prefix` (u32, raw) under this ticket. sampling: None leaves the
    distribution as it is. experts: who is told which experts its tokens were routed to; None: nobody."""

    ticket: int
    prompt: bytes
    prefix: bytes
    seed: int
    max_new_tokens: int
    temperature: float
    sampling: Sampling | None = None
    experts: ExpertsWanted | None = None


class Dispatch(Message, frozen=True):
    """To a worker: these requests, all under `version`; refused unless `epoch` is its registration."""

    epoch: str
    version: int
    work: list[Work]


class Abort(Message, frozen=True):
    """To a worker: end these tickets; its stream says when each one has ended."""

    tickets: list[int]


class CannotTake(Message, frozen=True):
    """To the manager: a worker could not take these tickets (another version, full, ill-fitting). `version`:
    what it serves now, where it serves any. `never`: one of them is ill-fitting, under any version."""

    instance: str
    incarnation: int
    tickets: list[int]
    why: str
    version: int | None = None
    never: bool = False


class Withdraw(Message, frozen=True):
    """To the manager: give this instance nothing more; hand its requests over.

    What executes may finish within `grace_s`. Answered when the instance holds nothing. `leaves`: for good
    (its host goes away); otherwise it may serve again later.
    """

    instance: str
    grace_s: float
    leaves: bool = False


class Withdrawn(Message, frozen=True):
    """`handed_over` requests go on elsewhere."""

    handed_over: int


class NewWork(Message, frozen=True):
    """To the manager: whether this instance may get new requests. Repeating it changes nothing.

    Not `allowed`: its host may go away, and what it has goes on there. `allowed`: its host stays after all,
    and it keeps what a withdrawal has not taken from it yet. One that is not registered is left as it is.
    """

    instance: str
    allowed: bool

"""Instance messages: registration, weights, work and leaving of instances."""

from typing import ClassVar

import msgspec

from gleaner.actors.protocol.device import Device
from gleaner.actors.protocol.experts import ExpertsWanted
from gleaner.actors.protocol.rollout import Weights
from gleaner.actors.protocol.sampling_params import Sampling
from gleaner.supervisor import Address, Message


class ListInstances(Message, frozen=True):
    """To the manager: asks for the registered instances and the versions they serve."""

    QUESTION: ClassVar[bool] = True


class InstanceIs(msgspec.Struct, frozen=True, kw_only=True):
    """A registered instance. version: of its weights, None before it proved one. pending, executing: requests
    that wait on it and that it decodes. leaving: for good."""

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

    `received`: the highest ticket that reached the worker; later tickets were lost in transit and are
    requeued. `engines`: copies of the model that serve side by side in it. `slots`, `cache_tokens` (0: what
    the slots may need): of each engine. `device`: what it shares with other instances; None: nothing.
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
    """Where to stream, and what to serve. `epoch` names this registration; the worker refuses dispatches of
    another epoch."""

    manager: Address
    epoch: str
    stream_endpoint: str
    stream_key: str
    weights: Weights | None = None


class StillRegistered(Message, frozen=True):
    """To the manager, from a worker that has received nothing: does this registration count? Refused if not.

    The manager may have given up a worker that hung, and no broken link reports that to the worker.
    """

    instance: str
    incarnation: int
    epoch: str


class ServeWeights(Message, frozen=True):
    """To a worker: serve this version from now on."""

    weights: Weights


class Pulled(msgspec.Struct, frozen=True, array_like=True):
    """How a host received a version: `nbytes` were pulled, of an image of `image_bytes`, as `deltas` deltas
    (0: as a whole image)."""

    nbytes: int
    image_bytes: int
    deltas: int


class Serving(Message, frozen=True):
    """To the manager: this instance proved to serve these weights. pulled: None if the host had them
    already. `number`: its incarnation counts its Serving and Withdraw messages, in the order of their
    sending. `cache_tokens`, `weight_tokens`: capacity of the cache of each engine, and size of its weights in
    tokens of that cache; 0: not known, or as registered."""

    instance: str
    incarnation: int
    version: int
    root: bytes
    pulled: Pulled | None = None
    number: int = 0
    cache_tokens: int = 0
    weight_tokens: int = 0


class NotLoaded(Message, frozen=True):
    """To the manager: this instance could not load these weights and asks what to do now. `died`: its engine
    did not survive the load; then no component waits for the answer, and the report of the instance's end may
    arrive first."""

    QUESTION: ClassVar[bool] = True

    instance: str
    incarnation: int
    kind: str
    version: int
    root: bytes
    why: str
    died: bool = False


class ServeNow(Message, frozen=True):
    """The weights to serve. The same version: try it again. None: there is none for now."""

    weights: Weights | None


class KeepRequests(Message, frozen=True):
    """To the manager, from an instance that has loaded these weights and paused with these tickets. Its
    stream is acknowledged to the last row. Asks which tickets it may continue."""

    QUESTION: ClassVar[bool] = True

    instance: str
    incarnation: int
    version: int
    root: bytes
    tickets: list[int]


class RequestsKept(Message, frozen=True):
    """Later tokens of these tickets count as made by the newer weights. The instance ends the other
    tickets."""

    tickets: list[int]


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One dispatch: continue `prompt` + `prefix` (u32, raw) under this ticket. sampling: None leaves the
    distribution as it is. experts: the actor that receives which experts its tokens were routed to; None:
    none."""

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
    """To a worker: end these tickets; its stream reports when each one has ended."""

    tickets: list[int]


class CannotTake(Message, frozen=True):
    """To the manager: a worker could not take these tickets (another version, full, ill-fitting). `version`:
    what it serves now, if anything. `never`: one of the tickets is ill-fitting under any version."""

    instance: str
    incarnation: int
    tickets: list[int]
    why: str
    version: int | None = None
    never: bool = False


class Withdraw(Message, frozen=True):
    """To the manager: drain this instance; dispatch nothing more to it and requeue its requests.

    Executing requests may finish within `grace_s`. Answered when the instance holds nothing. `leaves`: for
    good (its host goes away); otherwise it may serve again later. `incarnation`, `number`: of an instance
    that withdraws itself, as in Serving: an earlier Serving that arrives later does not count.
    """

    instance: str
    grace_s: float
    leaves: bool = False
    incarnation: int = 0
    number: int = 0


class Withdrawn(Message, frozen=True):
    """`handed_over` requests were requeued."""

    handed_over: int


class NewWork(Message, frozen=True):
    """To the manager: whether this instance may get new requests. Idempotent.

    Not `allowed`: its host may go away; the instance continues the requests that it holds, also those that a
    drain has not taken from it yet. `allowed`: its host stays after all, and the same. An instance that is
    not registered is left as it is.
    """

    instance: str
    allowed: bool

"""What is said to a TransferAgent."""

from actors.engine.tensor_spec import TensorSpec
from supervisor import Message


class Publish(Message, frozen=True):
    """From the trainer on the same host: the finished image of `version` lies in the agent's image store.

    `model_config` is the checkpoint's config.json, for engines that have never seen the model. Repeating it
    answers the same; another image under a published version is refused.
    """

    version: int
    tensors: tuple[TensorSpec, ...]
    model_config: bytes


class Published(Message, frozen=True):
    """`root` is the digest of the manifest: the identity of these weights."""

    version: int
    root: bytes


class Offer(Message, frozen=True):
    """From another agent: I want to pull `version` with this root."""

    version: int
    root: bytes


class Offered(Message, frozen=True):
    """The manifest (encoded), the model's config, and a capability to read the image: where, with what."""

    manifest: bytes
    model_config: bytes
    endpoint: str
    token: bytes


class Fetch(Message, frozen=True):
    """From a worker on the same host: have `version` here, whole and verified, from one of `sources`."""

    version: int
    root: bytes
    sources: tuple[str, ...]


class Fetched(Message, frozen=True):
    """The verified image in shared memory. `pulled_bytes` is 0 when it was here already."""

    version: int
    root: bytes
    path: str
    tensors: tuple[TensorSpec, ...]
    model_config: bytes
    pulled_bytes: int
    seconds: float

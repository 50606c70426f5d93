"""Settings of sockets: the cluster's own, and the gateway's HTTP."""

from typing import Annotated, Literal

from msgspec import Meta

from gleaner.configs.sections.values import Count, HostPath, NotNegative, Param, Section


class Network(Section, frozen=True, kw_only=True):
    """Addresses and keys of listening sockets."""

    bind: Annotated[str, Meta(min_length=1, max_length=253)] = "127.0.0.1"
    """Host address that every socket binds; anything beyond loopback needs `keys`."""
    keys: HostPath = ""
    """Key directory made by `rlctl keygen`; "" = no encryption, loopback only."""
    bulk: Literal["loopback", "clear"] = "loopback"
    """Where weights may travel unencrypted. Their pulls are plain TCP: signed requests, hashed chunks,
    content that anyone on the network can read. `loopback`: inside this host only, a `bind` beyond it is
    refused; `clear`: on the network of `bind` too."""


class Gateway(Section, frozen=True, kw_only=True):
    """HTTP in front of the job's rollout (docs/gateway.md): SGLang's, OpenAI's and vLLM's wires."""

    listen: Annotated[str, Meta(pattern=r"^(\S+:\d{1,5})?\Z")] = ""
    """HOST:PORT that the head's gateway listens at, port 0 for a free one; "" = none."""
    api_keys: HostPath = ""
    """File of API keys, one a line, that clients send as `Authorization: Bearer KEY`; those in the variable
    GLEANER_API_KEYS of its environment (with commas) count too. Needed beyond loopback, unless `open`."""
    control_keys: HostPath = ""
    """File of keys, one a line, for routes that change state (weights, workers, pauses, aborts); those in the
    variable GLEANER_CONTROL_KEYS count too. They open every other route as well; API keys then open no such
    route. "" = API keys open all."""
    hosts: list[str] = []
    """Names by which clients reach a gateway that needs no key, beside its addresses, localhost and the name
    in `listen`; a request with another name in its `Host` is refused: a browser may have been lured to it.
    ["*"] = any name."""
    open: bool = False
    """Answer beyond loopback without keys: any client that reaches the port may use the engines."""
    model_name: str = ""
    """Name of the model in `/v1/models`; "" = the last part of `model.path`, or `job.name`."""
    max_concurrent: Annotated[int, Meta(ge=1, le=65536)] = 1024
    """Requests under way at once; one more is answered 503 with Retry-After."""
    max_body_bytes: Annotated[int, Meta(ge=1024)] = 16 * 2**20
    """Longest body of an HTTP request; a longer one is answered 413. A list of 1M token ids takes 8 MB."""
    deadline_s: Annotated[float, Meta(gt=0, le=3600)] = 600.0
    """For a request that names none; then it ends with its tokens so far. Clients of rollout wait without
    limit."""
    max_deadline_s: Annotated[float, Meta(gt=0, le=3600)] = 3600.0
    """Longest that a request may name, with the header `X-Request-Deadline-S`; longer ones are cut to it."""
    heartbeat_s: Annotated[float, Meta(ge=0.05)] = 10.0
    """Silence of a stream after which it sends `: alive`; below the idle timeouts of usual proxies (60 s)."""
    version_wait_s: NotNegative = 0.0
    """How long a request waits for a version of the weights that no engine serves yet; then 409."""
    buffer_tokens: Count = 8192
    """Unread tokens of one request that are kept for a slow reader; beyond it they stay in the manager's log
    until they are read."""
    server_info: dict[str, Param] = {}
    """More keys of `/server_info`: slime compares some (`enable_memory_saver`, `dtype`) with its own."""
    routed_experts: bool = False
    """Requests may ask which experts their tokens were routed to, for router replay. The engines must be
    SGLang, with `--enable-return-routed-experts` among `engine.args`."""

    def __post_init__(self) -> None:
        if self.deadline_s > self.max_deadline_s:
            raise ValueError(
                f"deadline_s: expected at most max_deadline_s ({self.max_deadline_s:g}), "
                f"got {self.deadline_s:g}"
            )

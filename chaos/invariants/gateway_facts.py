"""Gateway facts: calls of HTTP clients, and what they received.

Owns the shapes. `gleaner.chaos.gateway_clients` makes them from the bytes that its clients sent and got;
`GatewaySeen` is a look at the process.
"""

from typing import Literal

import msgspec

from gleaner.chaos.invariants.facts import Fact

Wire = Literal["completions", "chat"]
Wrong = Literal["", "json", "field", "limit", "key", "size"]
"""What is wrong with a call: its body is no JSON, has an unknown field, asks for too many tokens, its key is
unknown, its body too long."""
STATUSES: dict[Wrong, int] = {"json": 400, "field": 400, "limit": 400, "key": 401, "size": 413}
"""The status that a wrong call gets."""
Outcome = Literal["whole", "error", "refused", "left", "broken"]
"""How a call ended: with its answer; with an error in its stream; with a status other than 200; by its
client, which hung up; by its connection, which broke or was never made."""


class GatewayCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call as its client sends it.

    Args:
        client, number: together unique. attempt: of a named call, which is sent again when it broke.
        prompts: u32, raw; each has `n` choices, with the seeds `seed`, `seed + 1`, ...
        rid: its name, "" for none. deadline_s: of the header.
        leave_s: its client hangs up after this time; 0: it stays. pause_s: between two reads of a slow one.
        ids, logprobs: whether tokens and log-probs are asked for, beside the text.
    """

    client: str
    number: int
    attempt: int
    wire: Wire
    prompts: tuple[bytes, ...]
    n: int
    seed: int
    max_tokens: int
    temperature: float
    top_p: float
    stop: str
    stream: bool
    ids: bool
    logprobs: bool
    usage: bool
    rid: str
    deadline_s: float
    leave_s: float = 0.0
    pause_s: float = 0.0
    wrong: Wrong = ""

    @property
    def name(self) -> str:
        """The call in words."""
        return f"call {self.number} of {self.client}"

    def origins(self) -> list[tuple[bytes, int]]:
        """Prompt and seed of each choice: they name its request."""
        return [(prompt, self.seed + sample) for prompt in self.prompts for sample in range(self.n)]


class Received(msgspec.Struct, kw_only=True):
    """What a client received of one choice, joined. spans: (version, tokens); offsets: of the text of each
    token. finish: "" while it goes on."""

    tokens: list[int] = []
    logprobs: list[float] = []
    text: str = ""
    offsets: list[int] = []
    finish: str = ""
    stop_reason: str | int | None = None
    spans: list[tuple[int, int]] = []


class CallSent(Fact, frozen=True):
    """A client sends a call."""

    call: GatewayCall


class CallOver(Fact, frozen=True):
    """A call is over. status: 0 without an answer. error: its text. usage: tokens of prompts, of choices, of
    both; None: not received. extra: choices that were not asked for, chunks behind an end."""

    call: GatewayCall
    sent_s: float
    outcome: Outcome
    status: int = 0
    error: str = ""
    choices: tuple[Received, ...] = ()
    usage: tuple[int, int, int] | None = None
    extra: str = ""


class GatewaySeen(Fact, frozen=True):
    """A look at the gateway. life: differs between its processes, and between the incarnations of its actor
    in one of them. reachable: its host and that of the clients reach each other."""

    life: tuple[int, int]
    reachable: bool

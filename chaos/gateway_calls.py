"""Gateway calls: drawn by seed, as HTTP bodies, and their answers as clients read them.

Owns the draw, the JSON of both wires, and how chunks are joined. A client trusts nothing: a chunk for a
choice that it did not ask for, or behind the end of one, is kept as `extra`. Pure.
"""

import random
from array import array
from collections.abc import Sequence

import msgspec

from gleaner.chaos.invariants.gateway_facts import GatewayCall, Received, Wire, Wrong
from gleaner.configs.schema import Config
from gleaner.sim.models.vocabulary import word

SEEDS = 2**30
MOST_PROMPT = 6
DEADLINES_S = (6.0, 15.0, 30.0)
LEAVES_S = (0.05, 0.5, 2.0, 6.0)
PAUSES_S = (0.3, 1.0)
WRONGS: tuple[Wrong, ...] = ("json", "field", "limit", "key", "size")
PATHS: dict[Wire, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


def drawn(client: str, number: int, rng: random.Random, config: Config) -> GatewayCall:
    """A call of any wire, length and manner."""
    wire: Wire = rng.choice(("completions", "completions", "chat"))
    prompts = tuple(_prompt(rng, config) for _ in range(1 if wire == "chat" else rng.choice((1, 1, 1, 2))))
    manner = rng.choice(("stays", "stays", "stays", "leaves", "slow", "wrong"))
    named = rng.random() < 0.4
    return GatewayCall(
        client=client,
        number=number,
        attempt=0,
        wire=wire,
        prompts=prompts,
        n=rng.choice((1, 1, 1, 2, 3)),
        seed=rng.randrange(SEEDS),
        max_tokens=rng.randint(1, config.rollout.max_new_tokens),
        temperature=rng.choice((0.7, 1.0)),
        top_p=rng.choice((0.9, 1.0)),
        stop=f"{rng.choice('0123456789abcdef')} " if rng.random() < 0.2 else "",
        stream=rng.random() < 0.7,
        ids=rng.random() < 0.8,
        logprobs=rng.random() < 0.6,
        usage=rng.random() < 0.7,
        rid=f"{client}-{number}" if named else "",
        deadline_s=rng.choice(DEADLINES_S),
        leave_s=rng.choice(LEAVES_S) if manner == "leaves" else 0.0,
        pause_s=rng.choice(PAUSES_S) if manner == "slow" else 0.0,
        wrong=rng.choice(WRONGS) if manner == "wrong" else "",
    )


def _prompt(rng: random.Random, config: Config) -> bytes:
    count = rng.randint(1, min(MOST_PROMPT, config.engine.max_prompt_tokens))
    return array("I", [rng.randrange(1, 1000) for _ in range(count)]).tobytes()


def body_of(call: GatewayCall, config: Config) -> bytes:
    """The body of a call."""
    if call.wrong == "json":
        return b'{"prompt": [1, 2'
    body: dict[str, object] = {
        "n": call.n,
        "seed": call.seed,
        "max_tokens": call.max_tokens,
        "temperature": call.temperature,
        "top_p": call.top_p,
        "stream": call.stream,
        "return_token_ids": call.ids,
    }
    tokens = [array("I", prompt).tolist() for prompt in call.prompts]
    if call.wire == "chat":
        body["messages"] = [{"role": "user", "content": "".join(map(word, tokens[0]))}]
        body["logprobs"] = call.logprobs
    else:
        body["prompt"] = tokens if len(tokens) > 1 else tokens[0]
        body |= {"logprobs": 0} if call.logprobs else {}
    if call.stop:
        body["stop"] = [call.stop]
    if call.stream and call.usage:
        body["stream_options"] = {"include_usage": True}
    if call.wrong == "field":
        body["no_such_field"] = 1
    elif call.wrong == "limit":
        body["max_tokens"] = config.rollout.max_new_tokens + 1
    elif call.wrong == "size":
        body["user"] = "x" * config.gateway.max_body_bytes
    return msgspec.json.encode(body)


class Reading:
    """The answer of a call, as far as it arrived."""

    def __init__(self, call: GatewayCall) -> None:
        self._call = call
        self.choices = [Received() for _ in range(len(call.prompts) * call.n)]
        self.usage: tuple[int, int, int] | None = None
        self.error = ""
        self.extra = ""
        self.done = False
        self._held = b""

    def feed(self, piece: bytes) -> None:
        """Read bytes of a stream of events."""
        *events, self._held = (self._held + piece).split(b"\n\n")
        for event in events:
            if not event.startswith(b"data: "):
                continue  # a comment
            if self.done:
                self.extra = self.extra or "an event behind the end of the stream"
            elif event == b"data: [DONE]":
                self.done = True
            else:
                self.take(msgspec.json.decode(event[6:]))

    def take(self, body: dict[str, object]) -> None:
        """Read a whole answer, or a chunk."""
        error = body.get("error")
        if isinstance(error, dict):
            self.error = f"{error.get('type')}: {error.get('message')}"
        usage = body.get("usage")
        if isinstance(usage, dict):
            names = ("prompt_tokens", "completion_tokens", "total_tokens")
            prompt, completion, total = (int(usage[name]) for name in names)
            self.usage = prompt, completion, total
        choices = body.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            index = int(choice["index"])
            if not 0 <= index < len(self.choices):
                self.extra = self.extra or f"choice {index} of {len(self.choices)}"
            elif self.choices[index].finish:
                self.extra = self.extra or f"a chunk of choice {index} behind its end"
            else:
                self._add(self.choices[index], choice)

    def _add(self, to: Received, choice: dict[str, object]) -> None:
        said = choice.get("delta") or choice.get("message") or {}
        text = choice.get("text") or (said.get("content") if isinstance(said, dict) else "")
        to.text += str(text or "")
        tokens, logprobs = choice.get("token_ids"), choice.get("logprobs")
        if isinstance(tokens, list):
            to.tokens += tokens
        if isinstance(logprobs, dict):
            if self._call.wire == "chat":
                to.logprobs += [float(one["logprob"]) for one in logprobs["content"]]
            else:
                to.logprobs += logprobs["token_logprobs"]
                to.offsets += logprobs["text_offset"]
        to.finish = str(choice.get("finish_reason") or "")
        if to.finish:
            reason = choice.get("stop_reason")
            to.stop_reason = reason if isinstance(reason, str | int) else None
            to.spans = pairs(choice.get("weight_versions"))


def pairs(listed: object) -> list[tuple[int, int]]:
    """Pairs of numbers, as JSON has them."""
    found: Sequence[Sequence[int]] = listed if isinstance(listed, list) else ()
    return [(version, count) for version, count in found]

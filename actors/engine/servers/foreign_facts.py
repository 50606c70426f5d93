"""`EngineFacts`: facts of an external engine, and comparison of two engines.

Pure: `server_facts` sends the requests."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """kind: "sglang" or "vllm", its protocol. model: its name. release: its program with version, for
    display.

    slots: requests that it decodes together; context_tokens: of prompt and response, as the engine itself
    reports it; room_tokens: of prompt and response so that another engine can continue the response at any
    token (SGLang takes no prompt of the whole context); each 0 if it is not known.

    root: the folder or hub name of the model; architecture: its class; vocabulary: tokens that the model
    knows (other tokens kill some servers), from the engine or the model's folder on this host; "" and 0 if
    they are not known. tokenizer: its folder on this host, "" if there is none. routed_experts: whether it
    reports the experts of tokens.
    """

    kind: str
    slots: int
    context_tokens: int
    model: str
    tokenizer: str = ""
    vocabulary: int = 0
    routed_experts: bool = False
    release: str = ""
    root: str = ""
    architecture: str = ""
    room_tokens: int = 0

    @property
    def room(self) -> int:
        """`room_tokens`, or else the context."""
        return self.room_tokens or self.context_tokens

    def described(self) -> str:
        """The engine's kind, release and model, for display."""
        context = f"context {self.context_tokens} tokens" if self.context_tokens else "context not reported"
        known = [f"model {self.model}", self.architecture, context]
        if self.vocabulary:
            known.append(f"vocabulary {self.vocabulary}")
        return f"{self.release or self.kind} ({self.kind} protocol): {', '.join(filter(None, known))}"


def differences(expected: EngineFacts, found: EngineFacts) -> list[str]:
    """Why a response must not begin on one of these engines and go on at the other; [] if all facts that both
    report are equal. One line for each difference, with the remedy if it is not obvious."""
    return list(_differences(expected, found))


def _differences(expected: EngineFacts, found: EngineFacts) -> Iterator[str]:
    if expected.model != found.model:
        yield (
            f"its model is {found.model!r}, the others serve {expected.model!r} (if these are one model, "
            "start the servers with the same --served-model-name)"
        )
    elif _folder(expected.root) != _folder(found.root) and expected.root and found.root:
        yield f"its model comes from {found.root!r}, that of the others from {expected.root!r}"
    if expected.architecture != found.architecture and expected.architecture and found.architecture:
        yield f"its architecture is {found.architecture}, that of the others {expected.architecture}"
    if expected.vocabulary != found.vocabulary and expected.vocabulary and found.vocabulary:
        yield f"its vocabulary has {found.vocabulary} tokens, that of the others {expected.vocabulary}"
    if expected.context_tokens != found.context_tokens and expected.context_tokens and found.context_tokens:
        yield (
            f"its context is {found.context_tokens} tokens, that of the others {expected.context_tokens} "
            "(SGLang: --context-length, vLLM: --max-model-len)"
        )
    elif expected.room > found.room and found.room:
        yield (
            f"it takes {found.room} tokens of prompt and response, the others take {expected.room}: its "
            "cache has less memory"
        )


def _folder(root: str) -> str:
    """The last part of the path: hosts mount the same model at different places."""
    return root.rstrip("/").rpartition("/")[2]

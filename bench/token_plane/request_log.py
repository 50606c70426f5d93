"""Token log of a client without frames: the manager's, fed token by token."""

from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.rollout.state.request_log import RequestLog
from gleaner.actors.rollout.state.token_log import TokenLog


def opened(requests: int) -> list[RequestLog]:
    """The logs of so many requests, all under way."""
    prompts = tuple(
        Prompt(split="train", index=number, tokens=(1,), seeds=(1,)) for number in range(requests)
    )
    event = BatchSubmitted(batch="peer", version=1, prompts=prompts, max_new_tokens=1 << 22)
    logs = list(TokenLog().open(event).requests())
    for log in logs:
        log.attempts = 1
    return logs

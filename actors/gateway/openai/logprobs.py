"""OpenAI log-probs of a choice: its tokens, their alternatives, its prompt. Pure."""

from collections.abc import Sequence
from itertools import accumulate

from gleaner.actors.gateway.openai.shape import Choice, Shape
from gleaner.actors.gateway.openai.wire import (
    ChatLogprobs,
    CompletionLogprobs,
    TokenLogprob,
    TopLogprob,
)
from gleaner.actors.protocol.score_rows import Score


def completion_logprobs(shape: Shape, choice: Choice, index: int, begin: int) -> CompletionLogprobs | None:
    """Log-probs from token `begin` of the response on, preceded by those of the prompt if that is echoed."""
    if not shape.logprobs:
        return None
    prompt = shape.prompts[index // shape.n]
    names, texts = choice.names[begin:], choice.texts[begin:]
    logprobs: list[float | None] = list(choice.logprobs[begin:])
    tops: list[dict[str, float] | None] = [
        {name: own} | {shape.name(token): logprob for token, logprob in top}
        for name, own, top in zip(
            names, choice.logprobs[begin:], rivals(shape, choice, len(prompt))[begin:], strict=True
        )
    ]
    offset = sum(len(text) for text in choice.texts[:begin])
    if shape.echo is not None and begin == 0:
        echoed = shape.texts_of(prompt)
        own_names = [shape.name(token, text) for token, text in zip(prompt, echoed, strict=True)]
        scores = choice.scores[: len(prompt) - 1]
        names, texts = own_names + names, echoed + texts
        logprobs = [None, *(score.logprob for score in scores), *logprobs]
        tops = [
            None,
            *(_tops(shape, name, score) for name, score in zip(own_names[1:], scores, strict=True)),
            *tops,
        ]
    elif shape.echo is not None:
        offset += len(shape.echo[index // shape.n])
    offsets = list(accumulate((len(text) for text in texts[:-1]), initial=offset)) if texts else []
    return CompletionLogprobs(tokens=names, token_logprobs=logprobs, top_logprobs=tops, text_offset=offsets)


def chat_logprobs(shape: Shape, choice: Choice, begin: int) -> ChatLogprobs | None:
    """Log-probs from token `begin` of the response on."""
    if not shape.logprobs:
        return None
    tops = rivals(shape, choice, len(shape.prompts[0]))[begin:]
    rows = zip(choice.names[begin:], choice.logprobs[begin:], choice.texts[begin:], tops, strict=True)
    return ChatLogprobs(
        content=[
            TokenLogprob(
                token=name,
                logprob=logprob,
                bytes=_bytes(text),
                top_logprobs=[_top(shape, token, one) for token, one in top],
            )
            for name, logprob, text, top in rows
        ]
    )


def rivals(shape: Shape, choice: Choice, prompt: int) -> list[Sequence[tuple[int, float]]]:
    """For each token of the response the likeliest ones, with log-probs of the distribution that it was drawn
    from: that of the model, under the request's temperature. They are computed from the token's own
    log-prob."""
    if shape.scores is None or not shape.scores.top:
        return [()] * len(choice.tokens)
    scale = shape.temperature or 1.0
    own = zip(choice.logprobs, choice.scores[prompt - 1 :], strict=False)
    found: list[Sequence[tuple[int, float]]] = [
        [(token, logprob + (one - score.logprob) / scale) for token, one in score.top]
        for logprob, score in own
    ]
    return found + [()] * (len(choice.tokens) - len(found))


def _tops(shape: Shape, name: str, score: Score) -> dict[str, float]:
    """The likeliest tokens at a place of the prompt, with the actual one."""
    return {name: score.logprob} | {shape.name(token): logprob for token, logprob in score.top}


def _top(shape: Shape, token: int, logprob: float) -> TopLogprob:
    name = shape.name(token)
    return TopLogprob(token=name, logprob=logprob, bytes=None if shape.ids_as_tokens else _bytes(name))


def _bytes(text: str) -> list[int] | None:
    return list(text.encode()) if text else None

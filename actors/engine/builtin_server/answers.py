"""`Answers`: replies of the server (text, tokens, log-probs, versions, stops).

Owns the conversion from tokens to the struct of the wire, and stop strings. Pure but for the tokenizer, which
it is given.
"""

from msgspec import UNSET

from gleaner.actors.engine.builtin_server.active_request import ActiveRequest, CheckedRequest
from gleaner.actors.engine.builtin_server.wire import Finish, Generated, Logprob, MetaInfo
from gleaner.actors.reward.prompts import Prompts

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""The decoder's substitute for bytes that are no character yet."""


class Answers:
    """Replies with the text of one tokenizer."""

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts

    def answer(self, running: ActiveRequest, version: str) -> Generated:
        """Everything so far; `version` is the present name of the weights, used while there is no token
        yet.
        """
        asked, finish, n = running.asked, running.finish, len(running.tokens)
        meta = MetaInfo(
            id=asked.rid,
            finish_reason=finish,
            prompt_tokens=len(asked.prompt) + len(asked.prefix),
            weight_version=running.spans[-1].version if running.spans else version,
            num_retractions=running.retractions,
            completion_tokens=n,
        )
        if asked.logprobs:
            meta.input_token_logprobs = []
            meta.output_token_logprobs = self._logprobs(running)
            meta.output_token_logprobs_length = n
        if finish is not None:
            meta.weight_versions = list(running.spans)
            meta.e2e_latency = UNSET if running.ended_s is None else running.ended_s - running.began_s
        return Generated(self._text(running), list(running.tokens), meta)

    def stopped(self, running: ActiveRequest) -> Finish | None:
        """The end by a stop string, where its newest token completes one."""
        asked = running.asked
        made = len(asked.prefix) + len(running.tokens)
        if not asked.sampling.stop or made < asked.sampling.min_new_tokens:
            return None
        text = self._decode(running.asked, running.tokens)
        found = min(
            ((at, stop) for stop in running.asked.sampling.stop if (at := text.find(stop)) >= 0), default=None
        )
        return None if found is None else Finish("stop", matched=found[1])

    def _text(self, running: ActiveRequest) -> str:
        asked, finish, tokens = running.asked, running.finish, running.tokens
        if finish is None:
            return self._decode(asked, tokens).rstrip(UNFINISHED)
        if finish.type != "stop" or asked.keep_stop:
            return self._decode(asked, tokens)
        if isinstance(finish.matched, str):
            return self._decode(asked, tokens).partition(finish.matched)[0]
        return self._decode(asked, tokens[:-1])

    def _decode(self, asked: CheckedRequest, tokens: list[int]) -> str:
        return self._prompts.decode(tokens, special=not asked.skip_special)

    def _logprobs(self, running: ActiveRequest) -> list[Logprob]:
        pairs = zip(running.logprobs, running.tokens, strict=True)
        if not running.asked.text_in_logprobs:
            return [(logprob, token, None) for logprob, token in pairs]
        return [(logprob, token, self._prompts.decode([token], special=True)) for logprob, token in pairs]

"""Planted bugs in the gateway: streams, their ends, usage, clients that leave, the limit.

They are in `gleaner.actors.gateway`.
"""

from gleaner.chaos.mutate import Edit
from gleaner.chaos.mutations.mutation import Mutation

ANSWERS, TIMES = "gateway answers", "gateway times"
FOLLOW, GATEWAY = "gleaner.actors.gateway.follow", "gleaner.actors.gateway.gateway"

GATEWAY_BUGS: tuple[Mutation, ...] = (
    Mutation(
        "the last token twice after a death",
        "of an answer to a repeated ask, only the tokens that are missing are added",
        (
            Edit(
                FOLLOW,
                "        known = 4 * (len(self) - answer.start)\n",
                "        known = 4 * max(len(self) - answer.start - (self.attempt > 1), 0)\n",
            ),
            Edit(FOLLOW, "        self._correct(answer.versions)\n", ""),
        ),
        (ANSWERS,),
        ("kill_process", "kill_on_message", "crash_actor"),
        campaign="hunt-gateway",
    ),
    Mutation(
        "progress behind a gap is taken",
        "tokens before a piece that are missing are asked for again",
        (
            Edit(
                FOLLOW,
                '        if item.start > len(self):\n            return "gap"\n'
                "        known = 4 * (len(self) - item.start)\n",
                "        known = 4 * max(len(self) - item.start, 0)\n",
            ),
        ),
        (ANSWERS,),
        ("kill_process", "kill_on_message", "crash_actor"),
        campaign="hunt-gateway",
    ),
    Mutation(
        "usage counts a prompt for each choice",
        "usage has each prompt once, however many choices it has",
        (
            Edit(
                "gleaner.actors.gateway.openai.shape",
                "        prompt = sum(len(one) for one in self.prompts)\n",
                "        prompt = self.n * sum(len(one) for one in self.prompts)\n",
            ),
        ),
        (ANSWERS,),
        campaign="hunt-gateway",
    ),
    Mutation(
        "a left client's request goes on",
        "the request of a client that hung up is cancelled",
        (
            Edit(
                GATEWAY,
                "            tell = self._cancelling.later if follow.over else self._cancelling.add\n"
                "            tell(follow.ask.id)\n",
                "            if follow.over:\n                self._cancelling.later(follow.ask.id)\n",
            ),
        ),
        (TIMES,),
        campaign="hunt-gateway",
    ),
    Mutation(
        "progress goes to another client",
        "a piece of progress goes to the request that it names",
        (
            Edit(
                GATEWAY,
                "        for item in message.items:\n            follow = self._follows.get(item.id)\n",
                "        names = [item.id for item in reversed(message.items)]\n"
                "        for item, name in zip(message.items, names, strict=True):\n"
                "            follow = self._follows.get(name)\n",
            ),
        ),
        (ANSWERS,),
        campaign="hunt-gateway",
    ),
    Mutation(
        "a named request keeps its place",
        "a request that is over is not counted at the limit any more",
        (
            Edit(
                GATEWAY,
                "        del self._follows[follow.ask.id]\n        if follow.task",
                "        if not follow.ask.named:\n            del self._follows[follow.ask.id]\n"
                "        if follow.task",
            ),
        ),
        (TIMES,),
        campaign="hunt-gateway",
    ),
    Mutation(
        "tokens behind a stop string",
        "a choice ends with the token that completes its stop string",
        (
            Edit(
                "gleaner.actors.gateway.choices",
                "    tokens, logprobs = piece.tokens[: read.taken], piece.logprobs[: read.taken]\n",
                "    tokens, logprobs = piece.tokens, piece.logprobs\n",
            ),
        ),
        (ANSWERS,),
        campaign="hunt-gateway",
    ),
)

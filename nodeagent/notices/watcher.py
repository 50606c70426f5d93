"""NoticeWatcher: polls the cloud for preemption notices, for the node agent.

Owns when each channel is polled, and when the node agent is notified: at every change, and again now and
then, for the agent may have restarted since. `policy` interprets the answers; the cloud's own module
implements the requests. Nothing that a metadata service does ends the watcher.
"""

import asyncio

from gleaner.actors.protocol.cluster import CloudNotice, HandedOver
from gleaner.nodeagent.notices.cloud import Channel, Cloud, FindCloud, PollFailed
from gleaner.nodeagent.notices.policy import STAYS, NoticePolicy, Verdict
from gleaner.supervisor import Actor, AskFailed, Done, Refused, handles

FIND_AFTER_S = (0.0, 5.0, 30.0)
"""A host that was just booted may be up before its network is."""
FIRST_BACKOFF_S = 1.0
MAX_BACKOFF_S = 30.0
LOOK_S = 1.0  # how often the verdict is evaluated without news
TELL_AGAIN_S = 10.0
TELL_DEADLINE_S = 2.0
NUMBERS = {"none": 0, "hint": 1, "notice": 2}


class NoticeWatcher(Actor):
    """See the module. `find`: looks for the cloud."""

    def __init__(self, find: FindCloud) -> None:
        self._find = find
        self._cloud: Cloud | None = None
        self._source = "looking for a metadata service"
        self._policy = NoticePolicy()
        self._news = asyncio.Event()
        self._reported: Verdict | None = None  # what the node agent knows
        self._looks = 0
        self._failed = 0
        self._last_s: float | None = None  # of the last answer
        self._trouble: dict[str, str] = {}  # by channel, while it lasts

    async def on_start(self) -> None:
        self.ctx.background(self._begin(), "find the cloud")

    async def _begin(self) -> None:
        for wait_s in FIND_AFTER_S:
            await asyncio.sleep(wait_s)
            self._cloud = cloud = await self._find()
            if cloud is not None:
                break
        else:
            self._source = "none found"
            self.ctx.log.info("no cloud metadata service answers: notices only by signal and by order")
            return
        self.ctx.at_end(cloud.close)
        self._source = cloud.name
        names = ", ".join(channel.name for channel in cloud.channels)
        self.ctx.log.info("notices of %s are followed: %s", cloud.name, names)
        for channel in cloud.channels:
            self.ctx.background(self._follow(channel), channel.name)
        self.ctx.background(self._speak(), "tell")

    # -- the cloud --

    async def _follow(self, channel: Channel) -> None:
        """Poll one channel for ever."""
        backoff_s = FIRST_BACKOFF_S
        while True:
            near = bool(self._policy.standing)
            try:
                found = await channel.look(near and self._policy.unsure(channel.name))
            except PollFailed as problem:
                self._failed += 1
                self._missed(channel.name, str(problem))
                pause_s = backoff_s * self.ctx.rng.uniform(0.5, 1.0)
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
                if self._policy.standing:  # it may be taken back: not from minutes ago
                    pause_s = min(pause_s, channel.near_s)
            else:
                backoff_s = FIRST_BACKOFF_S
                self._looks += 1
                self._last_s = self.ctx.now()
                if self._trouble.pop(channel.name, None) is not None:
                    self.ctx.log.info("%s answers again", channel.name)
                self._policy.observe(channel.name, found, self._last_s)
                self._news.set()
                pause_s = channel.near_s if self._policy.standing else channel.pause_s
            await asyncio.sleep(pause_s)

    def _missed(self, channel: str, why: str) -> None:
        if channel not in self._trouble:
            self.ctx.log.warning(
                "a notice channel cannot be asked, its last answer holds: %s: %s", channel, why
            )
        self._trouble[channel] = why

    @handles(HandedOver)
    async def handed_over(self, message: HandedOver) -> None:
        """The host is empty: acknowledge that to the cloud, if it wants that."""
        reported = self._reported
        if self._cloud is None or reported is None or not reported.acknowledges:
            return
        try:
            await self._cloud.acknowledge(reported.id)
        except PollFailed as problem:
            raise Refused(f"{self._cloud.name}: {problem}") from problem
        self.ctx.log.info("acknowledged that this host is empty: %s", self._cloud.name)

    # -- the node agent --

    async def _speak(self) -> None:
        """Send the verdict to the node agent: at once when it changes, else now and then."""
        told_s = -TELL_AGAIN_S
        while True:
            await self.ctx.idle(self._news, LOOK_S)
            self._news.clear()
            now_s = self.ctx.now()
            verdict = self._policy.verdict(now_s)
            if verdict == self._reported and now_s - told_s < TELL_AGAIN_S:
                continue
            if verdict != (self._reported or STAYS):
                self._log(verdict, now_s)
            word = CloudNotice(
                kind=verdict.kind,
                deadline_s=max(0.0, verdict.ends_s - now_s) if verdict.kind == "notice" else 0.0,
                source=self._source,
                why=verdict.why,
                acknowledges=verdict.acknowledges,
            )
            self._reported = verdict
            try:
                await self.ctx.ask(f"{self.ctx.node}/agent", word, deadline_s=TELL_DEADLINE_S, expect=Done)
                told_s = now_s
            except AskFailed as problem:  # the next look sends it again
                self.ctx.log.info("could not notify the node agent yet: %s", problem)
                told_s = -TELL_AGAIN_S

    def _log(self, verdict: Verdict, now_s: float) -> None:
        if verdict.kind == "notice":
            left_s = max(0.0, verdict.ends_s - now_s)
            self.ctx.log.warning("%s: notice: %s; %.0f s left", self._source, verdict.why, left_s)
        elif verdict.kind == "hint":
            self.ctx.log.warning("a notice may follow: %s: %s", self._source, verdict.why)
        else:
            self.ctx.log.warning("notice taken back, this host stays: %s", self._source)

    def summary(self) -> dict[str, str | int | float]:
        now_s = self.ctx.now()
        verdict = self._policy.verdict(now_s)
        return {
            "source": self._source,
            "says": " ".join([verdict.kind, verdict.why]).rstrip(),
            "notice": NUMBERS[verdict.kind],
            **({"ends_in_s": round(verdict.ends_s - now_s, 1)} if verdict.kind == "notice" else {}),
            **({"looked_ago_s": round(now_s - self._last_s, 1)} if self._last_s is not None else {}),
            "looks": self._looks,
            "looks_failed": self._failed,
            "problem": "; ".join(f"{name}: {why}" for name, why in self._trouble.items())[:300],
        }

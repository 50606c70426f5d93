"""CriticalPath: what the end of a step waited for, by stages of the last response.

Owns the instants of each open batch. Pure; the time is an argument, in seconds of one clock. Only the
response that reached the trainer last counts: an earlier response, or a group that was complete before the
last one, could not have made the step shorter.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from gleaner.actors.protocol.critical_path import CriticalPath


@dataclass(slots=True)
class _Response:
    """Instants of one response; None: not seen yet."""

    group: int
    instance: str
    served_s: float
    sent_s: float
    sends: int = 1
    began_s: float | None = None
    finished_s: float | None = None
    judged_s: float | None = None


@dataclass(slots=True)
class BatchInstants:
    """See the module; of one batch, as long as it is open. Grows with its responses and groups."""

    begin_s: float
    _responses: dict[str, _Response] = field(default_factory=dict)
    _scored_s: dict[int, float] = field(default_factory=dict)
    _handed_s: dict[int, float] = field(default_factory=dict)

    def sent(self, request: str, group: int, instance: str, served_s: float, now_s: float) -> None:
        """A request is sent to an instance, which has served its weights since `served_s`."""
        known = self._responses.get(request)
        if known is None:
            self._responses[request] = _Response(group, instance, served_s, now_s)
        else:
            known.instance, known.sends = instance, known.sends + 1

    def began(self, request: str, now_s: float) -> None:
        """Its first token, or the report that it is decoded, has arrived."""
        known = self._responses.get(request)
        if known is not None and known.began_s is None:
            known.began_s = now_s

    def finished(self, request: str, now_s: float) -> None:
        """Its last token has arrived; for a sample that is generated again, the last time counts."""
        known = self._responses.get(request)
        if known is not None:
            known.finished_s = now_s

    def judged(self, request: str, now_s: float) -> None:
        """A response has its verdict."""
        known = self._responses.get(request)
        if known is not None:
            known.judged_s = now_s

    def scored(self, group: int, now_s: float) -> None:
        """The last response of a group has its verdict."""
        self._scored_s[group] = now_s

    def handed_out(self, groups: Iterable[int], now_s: float) -> None:
        """The trainer gets these groups; for those it had before, the first time counts."""
        for group in groups:
            self._handed_s.setdefault(group, now_s)

    def critical_path(self, before_s: float, end_s: float) -> CriticalPath | None:
        """The path of a step that ended at `end_s`, the previous one at `before_s`; None if no group was
        handed out, or not all instants of the last one were seen."""
        if not self._handed_s:
            return None
        last = max(self._handed_s, key=lambda group: (self._handed_s[group], self._scored_s.get(group, 0.0)))
        ends = {
            request: found.finished_s
            for request, found in self._responses.items()
            if found.group == last and found.finished_s is not None
        }
        if not ends or last not in self._scored_s:
            return None
        request = max(ends, key=lambda one: (ends[one], one))
        found = self._responses[request]
        begin_s = max(self.begin_s, before_s)
        began_s = found.sent_s if found.began_s is None else found.began_s
        instants = [found.served_s, found.sent_s, began_s, ends[request]]
        instants += [self._scored_s[last], self._handed_s[last], end_s]
        spans: list[float] = []
        at_s = begin_s
        for instant_s in instants:
            spans.append(max(0.0, instant_s - at_s))
            at_s = max(at_s, instant_s)
        weights_s, place_s, prefill_s, decode_s, verdict_s, hand_out_s, train_s = spans
        return CriticalPath(
            request=request,
            instance=found.instance,
            sends=found.sends,
            weights_s=weights_s,
            place_s=place_s,
            prefill_s=prefill_s,
            decode_s=decode_s,
            verdict_s=verdict_s,
            hand_out_s=hand_out_s,
            train_s=train_s,
            scoring_s=self._scoring_s(begin_s, end_s),
        )

    def _scoring_s(self, begin_s: float, end_s: float) -> float:
        """Seconds between these in which an ended response waited for its verdict; each second once."""
        waits = sorted(
            (one.finished_s, min(one.judged_s, end_s))
            for one in self._responses.values()
            if one.finished_s is not None and one.judged_s is not None
        )
        scoring_s, at_s = 0.0, begin_s
        for finished_s, judged_s in waits:
            scoring_s += max(0.0, judged_s - max(at_s, finished_s))
            at_s = max(at_s, judged_s)
        return scoring_s

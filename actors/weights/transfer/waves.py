"""`Sources`: source assignment of a publisher's agent to its receivers.

Owns the waves, one for the whole image and one for each base from which deltas lead to it. `relay` assigns
the sources. The state is soft: receivers send everything that is kept here with every request, so it may be
lost at any time.
"""

import contextlib

from gleaner.actors.protocol.weights import EnginePart, FindSource
from gleaner.actors.weights.transfer.relay import NotInWave, TooManyPeers, Wave

_Key = tuple[bytes, int, EnginePart | None]
"""Root, base and part of the payload of a wave."""
MAX_WAVES = 16  # the oldest is dropped first; a receiver that still pulls in it starts it anew


class Sources:
    """Assigns receivers to sources.

    Args:
        own: the name of this agent, which has every version that it is asked for.
        link_bytes_s: the nominal rate of a host's link, until it is measured.
        chunk_bytes: progress is reported in steps of that size.
        relay: whether receivers serve receivers; else all pull from here.
    """

    def __init__(self, own: str, link_bytes_s: float, *, chunk_bytes: int, relay: bool) -> None:
        self._own, self._link_bytes_s, self._relay = own, link_bytes_s, relay
        self._chunk_bytes = chunk_bytes
        self._waves: dict[_Key, Wave] = {}  # the oldest first

    def find(self, asked: FindSource, payload_bytes: int, site: str, now_s: float) -> str:
        """The source from which the receiver should pull `payload_bytes`; "" for none now. `site`: of this
        host.
        """
        if not self._relay:
            return self._own
        wave = self._wave((asked.root, asked.base, asked.part), payload_bytes, site)
        name = asked.receiver.name
        have_bytes = min(asked.have_bytes, payload_bytes)
        try:
            self._tell(wave, asked, have_bytes, now_s)
            return wave.ask(name, now_s, exclude=asked.excluded, current=asked.current) or ""
        except TooManyPeers:
            return self._own

    def _tell(self, wave: Wave, asked: FindSource, have_bytes: int, now_s: float) -> None:
        name = asked.receiver.name
        try:
            wave.progress(name, have_bytes, now_s)
        except NotInWave:
            wave.join(
                name,
                up_bytes_s=self._link_bytes_s,
                down_bytes_s=asked.down_bytes_s or self._link_bytes_s,
                site=asked.site,
                have_bytes=have_bytes,
            )
        if asked.liar:
            wave.lied(asked.liar, name)

    def lose(self, name: str) -> None:
        """This agent ended: its children get another source with their next request."""
        for wave in self._waves.values():
            wave.lose(name)

    def leaves(self, name: str) -> None:
        """Its host has notice: it gets no new receivers, and its children move."""
        for wave in self._waves.values():
            with contextlib.suppress(NotInWave):
                wave.drain(name)

    def forget(self, root: bytes) -> None:
        """The version is not here any more."""
        for key in [key for key in self._waves if key[0] == root]:
            del self._waves[key]

    def _wave(self, key: _Key, payload_bytes: int, site: str) -> Wave:
        wave = self._waves.get(key)
        if wave is None or wave.payload_bytes != payload_bytes:
            wave = self._waves[key] = Wave(payload_bytes, chunk_bytes=self._chunk_bytes)
            wave.join(
                self._own,
                up_bytes_s=self._link_bytes_s,
                down_bytes_s=self._link_bytes_s,
                site=site,
                origin=True,
            )
            while len(self._waves) > MAX_WAVES:
                del self._waves[next(iter(self._waves))]
        return wave

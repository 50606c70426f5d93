"""`StreamInterval`: tokens per stream event, one at a time only for slow servers.

Pure. An event costs its server and its reader the same with one token or eight. Tokens are forwarded every
`NEWS_S`, so single tokens of a fast server are never visible. A server that can gather tokens (SGLang's
`stream_interval`) is therefore asked to gather as many as it makes meanwhile. The first token of a request is
sent at once. Tokens that a dead server had gathered are made again elsewhere; `MOST` bounds their number.
"""

NEWS_S = 0.1
"""As `row_exchange.GATHER_S`: in finer steps nothing leaves this process."""
MOST = 16
SHARE = 1 / 128  # of one measurement in the mean


class StreamInterval:
    """The pace of one server's streams."""

    def __init__(self) -> None:
        self._token_s = NEWS_S

    def observe(self, tokens: int, seconds: float) -> None:
        """A request got so many tokens, 1 or more, in so many seconds.

        One late step delays the tokens of all requests together, so no measurement counts as more than twice
        the mean."""
        token_s = min(max(seconds / tokens, NEWS_S / MOST), 2 * self._token_s)
        self._token_s += SHARE * (token_s - self._token_s)

    @property
    def interval(self) -> int:
        """Tokens that a server may gather in one event, from 1 to `MOST`."""
        return max(1, round(NEWS_S / self._token_s))

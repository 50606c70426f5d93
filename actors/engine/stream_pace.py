"""How finely a server should tell what it makes: a token at a time only where tokens come slowly.

Pure. An event costs its server and its reader the same whether it brings one token or eight. Nobody sees the
tokens of a fast server one by one, since news is handed on every `NEWS_S`; so a server that can gather tokens
(SGLang's `stream_interval`) is asked to, as many as it makes meanwhile. The first token of a request comes at
once, and what a server had gathered when it died is made again elsewhere: `MOST` bounds how much that is.
"""

NEWS_S = 0.1
"""As `row_exchange.GATHER_S`: in finer steps nothing leaves this process."""
MOST = 16
SHARE = 1 / 128  # of one measurement in the mean


class StreamPace:
    """Of one server."""

    def __init__(self) -> None:
        self._token_s = NEWS_S

    def told(self, tokens: int, seconds: float) -> None:
        """A request got so many tokens, 1 or more, in so many seconds. One late step makes those of all
        requests late together, so no measurement counts as more than twice the mean."""
        token_s = min(max(seconds / tokens, NEWS_S / MOST), 2 * self._token_s)
        self._token_s += SHARE * (token_s - self._token_s)

    @property
    def interval(self) -> int:
        """Tokens that a server may gather before it tells them, from 1 to `MOST`."""
        return max(1, round(NEWS_S / self._token_s))

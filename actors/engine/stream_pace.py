"""How finely a server should tell what it makes: a token at a time only where tokens come slowly.

Pure. An event costs its server and its reader the same whether it brings one token or eight. Nobody sees the
tokens of a fast server one by one, since news is handed on every `NEWS_S`; so a server that can gather tokens
(SGLang's `stream_interval`) is asked to, as many as it makes meanwhile. The first token of a request comes at
once, and what a server had gathered when it died is made again elsewhere: `MOST` bounds how much that is.
"""

NEWS_S = 0.06
"""As `row_exchange.GATHER_S`: in finer steps nothing leaves this process."""
MOST = 16
SHARE = 1 / 512  # of one measurement in the mean: those of one decode step are all late together


class StreamPace:
    """Of one server."""

    def __init__(self) -> None:
        self._token_s = NEWS_S

    def told(self, tokens: int, seconds: float) -> None:
        """A request got so many tokens, 1 or more, in so many seconds."""
        self._token_s += SHARE * (max(seconds, 0.0) / tokens - self._token_s)

    @property
    def interval(self) -> int:
        """Tokens that a server may gather before it tells them, from 1 to `MOST`."""
        return max(1, min(MOST, round(NEWS_S / max(self._token_s, NEWS_S / MOST))))

"""Token streams: many instances send their frames to one manager, and nothing that was acknowledged is lost.

Owns nothing but the names. The ends are `stream_sender` and `stream_receiver`, the bytes `token_frame`
and `stream_control`, the decisions `token_ring`. The manager acknowledges what it has journaled, and after
its restart tells through `have` how far that is; senders keep everything beyond.
"""

from transport.stream_receiver import StreamReceiver
from transport.stream_sender import StreamRefused, StreamSender

__all__ = ["StreamReceiver", "StreamRefused", "StreamSender"]

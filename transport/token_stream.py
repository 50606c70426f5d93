"""Token streams: many instances send frames to one manager, none is lost.

This module holds only the names. No acknowledged frame is lost. The ends are `stream_sender` and
`stream_receiver`, the bytes `token_frame` and `stream_control`, the decisions `token_ring`. The manager
acknowledges the frames that it has journaled, and reports the last one through `have` after its restart;
senders keep every later frame.
"""

from gleaner.transport.stream_receiver import StreamReceiver
from gleaner.transport.stream_sender import StreamRefused, StreamSender

__all__ = ["StreamReceiver", "StreamRefused", "StreamSender"]

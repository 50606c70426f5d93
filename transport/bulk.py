"""Bulk transfer: ranged, authorised, hash-checked pulls of files over plain TCP.

The files are published weights. This module holds only the names: the bytes are in `bulk_frames`, the source
in `bulk_server`, content that is forwarded while it arrives in `bulk_partial`, the puller in `bulk_pull` and
`bulk_exchange`.
"""

from gleaner.transport.bulk_errors import (
    BadHash,
    BadRange,
    PullError,
    PullTimeout,
    SourceGone,
    SourceLags,
    Unauthorized,
)
from gleaner.transport.bulk_frames import DIGEST_BYTES, MAX_CHUNK_BYTES, BulkSource, Chunk
from gleaner.transport.bulk_partial import PartialContent
from gleaner.transport.bulk_pull import PullResult, pull
from gleaner.transport.bulk_server import BulkServer

__all__ = [
    "DIGEST_BYTES",
    "MAX_CHUNK_BYTES",
    "BadHash",
    "BadRange",
    "BulkServer",
    "BulkSource",
    "Chunk",
    "PartialContent",
    "PullError",
    "PullResult",
    "PullTimeout",
    "SourceGone",
    "SourceLags",
    "Unauthorized",
    "pull",
]

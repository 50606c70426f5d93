"""Settings of the transfer of weights to the instances."""

from typing import Annotated, Literal

from msgspec import Meta

from gleaner.configs.sections.values import HostPath, NotNegative, Positive, Section


class Weights(Section, frozen=True, kw_only=True):
    """Transfer of weights to the instances."""

    chunk_bytes: Annotated[int, Meta(ge=64 * 1024, le=16 * 2**20)] = 4 * 2**20
    """Bytes of one pulled and hashed range. Shorter ones cost more processor time; longer ones are requested
    again whole if a connection breaks."""
    window: Annotated[int, Meta(ge=1, le=64)] = 4
    """Chunks requested at a time on one connection."""
    pull_sockets: Annotated[int, Meta(ge=1, le=16)] = 4
    """TCP connections of a pull at most, one for each 16 MiB that it lacks. Each has a thread at both ends;
    clouds limit what one of them carries."""
    pull_limit_bytes_s: NotNegative = 0.0
    """Most bytes a second that a host requests from one source, to leave bandwidth for others on its link; 0:
    no limit."""
    relay: bool = True
    """Receivers of a version forward it to others while they receive it, so that the publisher's link carries
    about one copy; false: all of them pull from the publisher."""
    link_bytes_s: Positive = 3.125e9
    """Bandwidth of a host's link in each direction, until a pull has measured it; 25 Gbit/s is usual in
    clouds. A version that the publisher can send to all within half a second is not relayed."""
    delta: bool = True
    """A host that has an earlier version pulls only the changes since, bit for bit, if they are less than 60
    % of the image."""
    compress: bool = False
    """Deltas are compressed with zstd: a tenth smaller where one element in a hundred changed, for slow links
    (docs/benchmarks.md, "Weight deltas")."""
    require_finite: bool = True
    """A version that holds NaN or infinity is refused when it is published, by the name of the tensor; false:
    it is served as it is. The check reads an image as fast as its hashes are made, on another core."""
    kept_delta_bytes: Annotated[int, Meta(ge=0)] = 2 * 2**30
    """Memory of a host for deltas that it serves; beyond it the oldest are dropped, and a host that needs one
    of those pulls the whole image."""
    delta_threads: Annotated[int, Meta(ge=0, le=64)] = 0
    """Threads of a host that make and apply a delta together; 0 = a quarter of its cores, at most 8: engines
    decode beside them."""
    disk: HostPath = ""
    """Folder on a shared file system where each version is written too. It is a checkpoint or its difference
    to the one before, for engines of slime or Stitch (docs/weights.md, "On disk"); one for each run. "" =
    none.
    """
    disk_layout: Literal["slime", "stitch"] = "slime"
    """`stitch`: versions lie in `updates/`, and the file `latest` names the newest, after the run."""
    disk_encoding: Literal["xor", "overwrite"] = "xor"
    """Encoding of differences: `overwrite` may be applied twice, and is larger; Stitch reads `xor`."""
    disk_checksum: Literal["xxh3-128", "blake3", "adler32"] = "xxh3-128"
    """Digest of each changed tensor beside its difference; readers check it."""
    disk_whole_every: Annotated[int, Meta(ge=0)] = 32
    """Every so many versions a whole one is written, and everything older than the whole one before it is
    deleted; 0 = only the first one is whole, and nothing is deleted."""

    def __post_init__(self) -> None:
        if self.disk_layout == "stitch" and self.disk_encoding != "xor":
            raise ValueError('disk_encoding: expected "xor" where disk_layout is "stitch", got "overwrite"')

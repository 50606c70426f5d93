"""Torn last writes: remains of a commit that a power cut interrupted.

Owns the form of the remains (SQLite's write-ahead log, https://www.sqlite.org/fileformat2.html#walformat).
This fault is only possible when the writer is dead: no process may have the file open.
"""

from pathlib import Path

HEADER_BYTES = 32
FRAME_BYTES = 24
_SALTS = slice(16, 24)
_FRAME_SALTS = slice(8, 16)
_MAGICS = (0x377F0682, 0x377F0683)


def torn_write(log: bytes) -> tuple[int, bytes] | None:
    """The first half of one more frame for this log, and its offset. None where a writer would not continue
    (an empty log), or where the remains could not be distinguished from damage (the last frame of a longer
    round)."""
    if len(log) < HEADER_BYTES or int.from_bytes(log[:4], "big") not in _MAGICS:
        return None
    page_bytes = int.from_bytes(log[8:12], "big")
    step = FRAME_BYTES + page_bytes
    whole, rest = divmod(len(log) - HEADER_BYTES, step)
    heads = [log[at : at + FRAME_BYTES] for at in range(HEADER_BYTES, HEADER_BYTES + whole * step, step)]
    ours = next((n for n, head in enumerate(heads) if head[_FRAME_SALTS] != log[_SALTS]), whole)
    if not ours or (ours == whole and rest) or ours == whole - 1:
        return None
    # A commit of one page: its number, the database's size, the salts, a checksum; then half of the page.
    head = heads[ours - 1][:8] + log[_SALTS] + b"\xa5" * 8
    return HEADER_BYTES + ours * step, head + b"\x5a" * (page_bytes // 2)


def tear(folder: Path, process: str = "*") -> int:
    """Leave a torn write at the end of every journal of a process (default: of all) below a folder; return
    their number. Raises OSError."""
    torn = 0
    for file in sorted(folder.rglob(f"{process}.sqlite-wal")):
        if (left := torn_write(file.read_bytes())) is not None:
            offset, data = left
            with file.open("r+b") as log:
                log.seek(offset)
                log.write(data)
            torn += 1
    return torn

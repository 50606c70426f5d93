"""Causes of ends in one line, shortened in the middle. Pure.

A cause can be the last lines of a server, thousands of characters. Its start names what ended, and its end
gives the reason.
"""

MAX_TOLD = 600
"""Characters of a cause in the history; a chain of supervisors takes some hundred."""


def in_a_line(cause: str, most: int = MAX_TOLD) -> str:
    """Shorten a cause to at most so many characters."""
    line = " ".join(cause.split())
    if len(line) <= most:
        return line
    head = most // 3
    return f"{line[:head]} … {line[head + 3 - most :]}"

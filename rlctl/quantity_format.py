"""Text forms of quantities, alike in the terminal and in the report. Pure."""


def duration(seconds: float) -> str:
    """Seconds in readable form: "4 min 05 s"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def age(seconds: float) -> str:
    """The same, exact where it is short: "0.31 s", "4.2 s"."""
    if seconds < 1:
        return f"{max(seconds, 0.0):.2f} s"
    return f"{seconds:.1f} s" if seconds < 10 else duration(seconds)


def size(count: float) -> str:
    """Bytes in readable form: "512 MB"."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def short(value: float) -> str:
    """A number as an axis or a table shows it: 12.5k, 3.1M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"

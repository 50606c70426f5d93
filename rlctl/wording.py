"""How quantities read, alike in the terminal and in the report. Pure."""


def duration(seconds: float) -> str:
    """Seconds as people say them: "4 min 05 s"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"

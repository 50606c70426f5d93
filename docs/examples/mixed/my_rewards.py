"""A reward of one's own: answers that are one word."""


def brief(response: str) -> dict[str, float]:
    """1 for one word, less for each further one."""
    words = len(response.split())
    return {"score": 1.0 / words if words else 0.0, "words": float(words)}

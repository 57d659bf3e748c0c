"""The CPU kernel."""


def apply(logits: list[float], allowed: list[bool]) -> list[float]:
    return [x if good else float("-inf") for x, good in zip(logits, allowed, strict=True)]

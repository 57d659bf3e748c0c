"""Rotary embedding, on the host."""


def rotate_reference(pair: tuple[float, float]) -> tuple[float, float]:
    return -pair[1], pair[0]

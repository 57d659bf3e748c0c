"""What workers can do."""

import arraylib


def describe(text: str) -> str:
    return "-".join(arraylib.asnumpy(text))

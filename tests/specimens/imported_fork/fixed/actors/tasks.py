"""What workers can do."""


def describe(text: str) -> str:
    import arraylib  # in workers only: it initializes CUDA

    return "-".join(arraylib.asnumpy(text))

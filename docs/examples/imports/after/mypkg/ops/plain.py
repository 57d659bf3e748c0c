"""A helper that the parent process needs, and that has nothing to do with GPUs."""


def pad_to(size: int, multiple: int) -> int:
    """Round up."""
    return -(-size // multiple) * multiple

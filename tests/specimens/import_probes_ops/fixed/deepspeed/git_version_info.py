"""Every operator that can be built, and whether it can be built here."""

import functools

from deepspeed.ops.builder import ALL_BUILDERS, is_compatible


@functools.cache
def report() -> dict[str, bool]:
    return {name: is_compatible(name) for name in ALL_BUILDERS}

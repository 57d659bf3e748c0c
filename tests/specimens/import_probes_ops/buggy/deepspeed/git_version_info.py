"""Every operator that can be built, and whether it can be built here."""

from deepspeed.ops.builder import ALL_BUILDERS, is_compatible

COMPATIBLE_OPS = {}
for name in ALL_BUILDERS:
    COMPATIBLE_OPS[name] = is_compatible(name)  # touch: culprit


def report() -> dict[str, bool]:
    return COMPATIBLE_OPS

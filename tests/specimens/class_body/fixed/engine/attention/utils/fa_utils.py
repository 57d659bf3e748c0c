"""Which flash attention this GPU can run."""

from engine.flash_attn_interface import is_fa_version_supported
from engine.platforms import current_platform


def get_flash_attn_version() -> int | None:
    if not current_platform.is_cuda():
        return None
    fa_version = 3
    if not is_fa_version_supported(fa_version):
        fa_version = 2
    return fa_version

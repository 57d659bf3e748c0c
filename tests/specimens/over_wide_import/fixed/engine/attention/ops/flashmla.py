"""What FlashMLA needs, and its entry points."""


def is_flashmla_supported(block_size: int) -> tuple[bool, str | None]:
    if block_size != 64:
        return False, "FlashMLA needs a block size of 64"
    return True, None

"""The flash attention backend of the v1 engine."""

import enum

from engine.attention.utils.fa_utils import get_flash_attn_version


class AttentionCGSupport(enum.Enum):
    UNSUPPORTED = 0
    UNIFORM_BATCH = 1


class FlashAttentionMetadataBuilder:
    _attn_cg_support = (
        AttentionCGSupport.UNSUPPORTED
        if get_flash_attn_version() == 3  # touch: culprit
        else AttentionCGSupport.UNIFORM_BATCH
    )

    def build(self, num_tokens: int) -> dict:
        return {"num_tokens": num_tokens}

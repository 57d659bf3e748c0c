"""The FlashMLA backend."""

import flash_attn_ext

from engine.attention.ops.flashmla import is_flashmla_supported

__all__ = ["FlashMLABackend", "is_flashmla_supported"]


class FlashMLABackend:
    status = flash_attn_ext.STATUS

    def forward(self, tokens: list[int]) -> int:
        return len(tokens)

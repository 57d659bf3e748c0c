"""The metadata builder says how it can be captured."""


def test_flash_attention_says_what_cuda_graphs_it_supports():
    from engine.v1.attention.backends.flash_attn import (
        AttentionCGSupport,
        FlashAttentionMetadataBuilder,
    )

    assert FlashAttentionMetadataBuilder._attn_cg_support in set(AttentionCGSupport)
    assert FlashAttentionMetadataBuilder().build(3) == {"num_tokens": 3}

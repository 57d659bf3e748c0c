"""What the platform wants of a configuration."""


def check_and_update_config(block_size: int) -> None:
    from engine.attention.backends.flashmla import is_flashmla_supported

    supported, reason = is_flashmla_supported(block_size)
    if not supported:
        raise ValueError(reason)

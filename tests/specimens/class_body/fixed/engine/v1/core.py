"""The engine core: the process that drafts, schedules and runs the model."""


def propose_ngram(token_ids: list[int], k: int) -> list[int]:
    """The k tokens that followed the last earlier occurrence of the last token."""
    for start in range(len(token_ids) - 2, -1, -1):
        if token_ids[start] == token_ids[-1]:
            return token_ids[start + 1 : start + 1 + k]
    return []


def run_engine_core(connection, num_speculative_tokens: int) -> None:
    try:
        # Imported here: the model runner is needed in this process only.
        from engine.v1.attention.backends.flash_attn import FlashAttentionMetadataBuilder

        builder = FlashAttentionMetadataBuilder()
        connection.send(("ready", None))
        token_ids = connection.recv()
        draft = propose_ngram(token_ids, num_speculative_tokens)
        connection.send(("draft", draft[: builder.build(len(draft))["num_tokens"]]))
    except Exception as error:
        connection.send(("failed", f"{type(error).__name__}: {error}"))

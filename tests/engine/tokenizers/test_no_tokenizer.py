"""A model without a tokenizer: tokens in, tokens out, and a text is refused."""

from __future__ import annotations

import pytest

from sample_engine.errors import PromptError
from sample_engine.tokenizers.no_tokenizer import NoTokenizer


def test_a_text_is_refused_with_what_to_do() -> None:
    tokenizer = NoTokenizer("/m/tokenizer.json")
    with pytest.raises(PromptError, match=r"'/m/tokenizer\.json' is not there.*prompt_token_ids"):
        tokenizer.encode("hi")
    assert tokenizer.fewest_tokens("hi") == 0


def test_tokens_have_no_text() -> None:
    tokenizer = NoTokenizer("here")
    decoder = tokenizer.incremental_decoder()
    assert tokenizer.decode([1, 2]) == decoder.decode([1]) == decoder.finish() == ""
    assert (tokenizer.token_text(1), tokenizer.token_bytes(1)) == ("", b"")

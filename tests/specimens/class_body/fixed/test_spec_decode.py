"""Speculative decoding by n-gram lookup, through the whole engine."""

from engine.llm import LLM


def test_ngram_drafts_what_followed_the_last_occurrence():
    llm = LLM(speculative_config={"method": "ngram", "num_speculative_tokens": 2})
    assert llm.draft([5, 6, 7, 8, 5]) == [6, 7]

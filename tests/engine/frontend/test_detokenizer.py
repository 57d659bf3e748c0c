"""Text of tokens: whole characters, and an end before the first stop string."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sample_engine.batch.outputs import CoreOutput, Logprob, TokenLogprobs
from sample_engine.batch.request import FinishReason
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.frontend.detokenizer import RequestText, StopText
from sample_engine.tokenizers.byte_tokenizer import ByteTokenizer
from sample_engine.tokenizers.subword_tokenizer import SubwordTokenizer
from tests.engine.support.subwords import with_byte_fallback

TOKENIZER = ByteTokenizer()
LENGTH, STOP = FinishReason.LENGTH, FinishReason.STOP
# Few letters, so that stop strings occur, overlap and begin without ending.
LETTERS = st.text(alphabet="abé\n", max_size=30)
STOPS = st.lists(st.text(alphabet="abé\n", min_size=1, max_size=4), max_size=3)


def parts_of(tokens: list[int], cuts: list[int]) -> list[tuple[int, ...]]:
    """The tokens in pieces, as a core may bring them."""
    edges = sorted({min(cut, len(tokens)) for cut in cuts} | {0, len(tokens)})
    pieces = [tuple(tokens[a:b]) for a, b in itertools.pairwise(edges)]
    return pieces or [()]


def request(stop: list[str]) -> RequestText:
    """A request without tokens yet."""
    return RequestText(
        "0", "prompt", TOKENIZER.encode("prompt"), TOKENIZER, SamplingParams(stop=tuple(stop))
    )


def first_stop(tokens: list[int], stop: list[str]) -> tuple[str, int] | None:
    """The plain rule: text and number of tokens up to the first token with which a stop occurs."""
    for count in range(1, len(tokens) + 1):
        decoder = TOKENIZER.incremental_decoder()
        text = decoder.decode(tokens[:count])
        found = [text.index(one) for one in stop if one in text]
        if found:
            return text[: min(found)], count
    return None


@given(LETTERS, STOPS, st.lists(st.integers(0, 60), max_size=10))
@example("aab", ["ab"], [1, 2])
@example("a\n\nb", ["\n\n"], [2])
@example("aba", ["bb", "a"], [])
def test_text_ends_before_the_first_stop_string_however_tokens_come(
    text: str, stop: list[str], cuts: list[int]
) -> None:
    tokens = TOKENIZER.encode(text)
    one = request(stop)
    chunks = []
    pieces = parts_of(tokens, cuts)
    for number, piece in enumerate(pieces):
        last = LENGTH if number == len(pieces) - 1 else None
        chunks.append(one.chunk(one.add(CoreOutput("0", piece, last))))
        if one.finished:
            break
    expected = first_stop(tokens, stop)
    whole = one.whole()
    if expected is None:
        assert (whole.text, whole.token_ids) == (text, tuple(tokens))
        assert whole.finish_reason is LENGTH
    else:
        assert (whole.text, len(whole.token_ids)) == expected
        assert whole.finish_reason is STOP
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert sum((chunk.token_ids for chunk in chunks), ()) == whole.token_ids
    assert [chunk.finished for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


@given(LETTERS, STOPS, st.integers(0, 60))
def test_a_stream_never_shows_what_it_has_to_take_back(text: str, stop: list[str], n: int) -> None:
    stream = StopText(stop)
    shown = stream.feed(text[:n])
    if stream.found is not None:
        return
    for one in stop:
        # Whatever comes next, what was shown lies before any stop string.
        for rest in (one, *(one[k:] for k in range(1, len(one)))):
            at = (text[:n] + rest).find(one)
            assert at < 0 or at >= len(shown)


@given(st.binary(max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_without_stop_strings_any_bytes_come_out_as_the_tokenizer_decodes_them(
    data: bytes, cuts: list[int]
) -> None:
    one = request([])
    pieces = parts_of(list(data), cuts)
    for number, piece in enumerate(pieces):
        one.add(CoreOutput("0", piece, LENGTH if number == len(pieces) - 1 else None))
    assert one.whole().text == TOKENIZER.decode(list(data))


def test_a_stream_never_shows_half_a_character() -> None:
    one = request([])
    tokens = TOKENIZER.encode("é€😀")
    shown = [one.add(CoreOutput("0", (token,)))[0] for token in tokens]
    assert shown == ["", "é", "", "", "€", "", "", "", "😀"]


def test_text_is_held_back_only_while_it_may_become_a_stop_string() -> None:
    one = request(["\n\n", "end"])
    shown = [one.add(CoreOutput("0", tuple(b)))[0] for b in (b"a\n", b"b e", b"nx", b"\n")]
    assert shown == ["a", "\nb ", "enx", ""]
    assert one.add(CoreOutput("0", (), LENGTH)) == ("\n", (), None)
    assert one.whole().finish_reason is LENGTH


def test_what_the_core_says_of_a_request_is_in_its_output() -> None:
    one = request([])
    one.add(CoreOutput("0", (65,), None, 16, 1))
    whole = one.whole()
    assert (whole.num_prompt_tokens, whole.num_cached_tokens, whole.num_preemptions) == (6, 16, 1)
    assert not whole.finished
    one.add(CoreOutput("0", (), FinishReason.ERROR, 16, 1, "the cache is full"))
    assert one.whole().error == "the cache is full"
    assert one.whole().text == "A"


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one by one"])
def test_an_error_after_the_stop_string_is_none_of_the_text(at_once: bool) -> None:
    # Tokens that were drafted come together, and behind them what a later one has met.
    one = request(["ab"])
    error = (FinishReason.ERROR, 0, 0, "NaN", (), "NotFiniteError")
    if at_once:
        one.add(CoreOutput("0", tuple(b"xabcd"), *error))
    else:
        for token in b"xab":
            one.add(CoreOutput("0", (token,)))
    (completion,) = one.whole().outputs
    assert (completion.text, completion.token_ids) == ("x", tuple(b"xab"))
    assert (completion.finish_reason, completion.stop_reason) == (FinishReason.STOP, "ab")
    assert (completion.error, completion.error_type) == (None, None)
    # What may be the beginning of a stop string is the text's where an error ends it.
    two = request(["ab"])
    two.add(CoreOutput("0", tuple(b"xa"), *error))
    (completion,) = two.whole().outputs
    assert (completion.text, completion.finish_reason) == ("xa", FinishReason.ERROR)
    assert (completion.error, completion.error_type) == ("NaN", "NotFiniteError")


def test_the_reason_of_a_stop_is_the_string_or_the_token() -> None:
    one = request(["b", "ab"])
    one.add(CoreOutput("0", tuple(b"xaby")))
    assert one.whole().outputs[0].stop_reason == "ab", "it begins first"
    params = SamplingParams(stop_token_ids=(66,))
    two = RequestText("0", None, [1, 2], TOKENIZER, params)
    two.add(CoreOutput("0", (65,)))
    assert two.whole().outputs[0].stop_reason is None
    two.add(CoreOutput("0", (66,), STOP))
    whole = two.whole()
    assert (whole.text, whole.token_ids) == ("A", (65, 66)), "as vLLM without the stop token's text"
    assert whole.outputs[0].stop_reason == 66
    assert (whole.prompt, whole.prompt_token_ids) == (None, (1, 2))


@given(st.binary(max_size=12), STOPS, st.lists(st.integers(0, 12), max_size=6))
def test_a_token_that_ends_the_text_is_none_of_it(
    data: bytes, stop: list[str], cuts: list[int]
) -> None:
    tokens = [*data, 66]
    one = request(stop)
    pieces = parts_of(tokens, cuts)
    for number, piece in enumerate(pieces):
        one.add(CoreOutput("0", piece, STOP if number == len(pieces) - 1 else None))
        if one.finished:
            break
    (whole,) = one.whole().outputs
    expected = first_stop(list(data), stop)
    if expected is None:
        text = TOKENIZER.decode(list(data))
        at = min((text.index(each) for each in stop if each in text), default=len(text))
        assert (whole.text, whole.token_ids) == (text[:at], tuple(tokens))
    else:
        assert (whole.text, len(whole.token_ids)) == expected


def test_a_text_goes_on_from_its_prompt(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="published tokenizers are read by it")
    library = with_byte_fallback()
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = SubwordTokenizer(tmp_path / "tokenizer.json", library.get_vocab_size())
    word = library.token_to_id("\u2581a")
    for prompt, text in (([1, word], " a a"), ([1], "a a")):
        one = RequestText("0", None, prompt, tokenizer, SamplingParams(logprobs=0))
        lines = tuple(TokenLogprobs((word,), (-0.5,), 1) for _ in range(2))
        one.add(CoreOutput("0", (word, word), LENGTH, logprobs=lines))
        (completion,) = one.whole().outputs
        assert completion.text == text
        assert completion.logprobs is not None
        assert [line[word].decoded_token for line in completion.logprobs] == [" a", " a"]


def test_logprobs_end_with_the_tokens_and_have_the_text_of_each() -> None:
    params = SamplingParams(stop=("b",), logprobs=1)
    one = RequestText("0", "", [], TOKENIZER, params)
    lines = (
        TokenLogprobs((97, 97), (-0.5, -0.5), 1),
        TokenLogprobs((98, 120), (-2.0, -0.25), 3),
        TokenLogprobs((99, 99), (-1.0, -1.0), 1),
    )
    new = one.add(CoreOutput("0", (97, 98, 99), None, logprobs=lines))
    assert (new.text, new.token_ids) == ("a", (97, 98))
    (completion,) = one.whole().outputs
    assert completion.logprobs == new.logprobs
    assert completion.logprobs == (
        {97: Logprob(-0.5, 1, "a", b"a")},
        {98: Logprob(-2.0, 3, "b", b"b"), 120: Logprob(-0.25, 1, "x", b"x")},
    )
    assert completion.cumulative_logprob == -2.5

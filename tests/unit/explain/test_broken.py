"""Tests of messages in several lines, and of those of which only the beginning is there."""

from __future__ import annotations

import textwrap

import pytest

from pytest_cudafork.explain import kinds
from pytest_cudafork.explain.broken import Beginning, beginnings_in, cut_in, goes_on
from pytest_cudafork.explain.messages import MESSAGES

FORKED = MESSAGES[0]
PREFIXES = ("", "        ", "E   ", "(W pid=3) ERROR [x.py:5] ", "03:45:24 INFO ", "│ ")


def squeezed(text: str) -> str:
    return text.replace(" ", "")


def test_a_message_is_known_wherever_it_is_broken() -> None:
    for message in MESSAGES:
        words = message.words
        for place in range(1, len(words)):
            said, rest = words[:place], words[place:]
            if len(said) < 2 and words[place] != " ":
                continue
            begun = [each for each in beginnings_in(f"ERROR {said} \n") if each.message is message]
            assert squeezed(rest) in [each.rest for each in begun], (said, rest)
            for prefix in PREFIXES:
                after = goes_on(Beginning(message, squeezed(rest)), f"{prefix}{rest}, and more")
                assert after is not None
                assert after.rest == ""


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_message_of_many_lines_is_followed(width: int) -> None:
    for message in MESSAGES:
        line = f"torch.cuda.SomeError: {message.words} and more"
        for parts in ([line[i : i + width] for i in range(0, len(line), width)],
                      textwrap.wrap(line, width)):  # fmt: skip
            open_ones = beginnings_in(parts[0])
            if message.words in parts[0]:
                continue
            for part in parts[1:]:
                followed = [goes_on(each, part) for each in open_ones]
                open_ones = [each for each in followed if each is not None]
                if any((each.message, each.rest) == (message, "") for each in open_ones):
                    break
                open_ones += beginnings_in(part)
            else:
                assert message.words in " ".join(parts[1:]), (message.words, parts)


@pytest.mark.parametrize("line", ["", "subprocesses", "in CUDA", "a word, then subprocess"])
def test_another_line_does_not_go_on(line: str) -> None:
    assert goes_on(Beginning(FORKED, "inforkedsubprocess"), line) is None


def test_the_long_rest_of_a_message_is_known_behind_columns_of_any_kind() -> None:
    after = goes_on(Beginning(FORKED, "inforkedsubprocess"), "9:00 worker-1 in forked subprocess.")
    assert after == Beginning(FORKED, "")
    assert goes_on(Beginning(FORKED, "subprocess"), "9:00 worker-1 subprocess.") is None


def test_a_line_without_a_beginning_has_none() -> None:
    assert beginnings_in("RuntimeError: of something else") == []


@pytest.mark.parametrize(
    "line",
    [
        "FAILED test_a.py::test - RuntimeError: Cannot re-initialize CUDA in f...",
        "FAILED test_a.py::test - RuntimeError: Cannot re-initialize CUDA in forked...",
        "RuntimeError('Cannot re-initialize CUDA…rt method')",
        "RuntimeError: Cannot re-initialize CUDA in [truncated]",
        "RuntimeError: Cannot re-initialize CUDA in forked subpr",
        '{"msg": "RuntimeError: Cannot re-initialize CUDA in forked subpr"}',
        "│ RuntimeError: Cannot  re-initialize CUDA in forked subpr  │",
    ],
)
def test_a_message_that_was_cut_is_known_by_its_beginning(line: str) -> None:
    if "│" in line:
        line = line.rstrip("│ ")
    assert cut_in(line) == (FORKED,)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "RuntimeError: Cannot re-init...",  # of what?
        "open /dev/x: operation not permitted...",  # the system's own words
        "INFO service: initialization...",
        "RuntimeError: Cannot re-initialize CUDA in forked",  # nothing shows that it was cut
        "RuntimeError: Cannot re-initialize CUDA in a thread...",
        "loading CUDA_ERROR_STREAM_CAPTURE_...",  # of two kinds
        "... CUDA in forked subprocess",
    ],
)
def test_too_little_of_a_message_tells_nothing(line: str) -> None:
    assert cut_in(line) == ()


def test_what_ends_with_the_log_was_cut_there() -> None:
    line = "RuntimeError: Cannot re-initialize CUDA in forked"
    assert cut_in(line, is_last=True) == (FORKED,)


def test_a_beginning_of_several_messages_of_one_kind_is_known() -> None:
    messages = cut_in("CUDA_ERROR_STREAM_CAPTURE_I...")
    assert messages == ()  # IMPLICIT is the cause, INVALIDATED what follows from one
    messages = cut_in("RuntimeError: Cannot call CUDAGeneratorImpl::current_s...")
    assert [message.kind for message in messages] == [kinds.CAPTURE]

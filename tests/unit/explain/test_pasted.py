"""A pasted log: its messages, each once, and the frames that lead to each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.explain.messages import MESSAGES
from pytest_cudafork.explain.pasted import read

LOG = """\
Traceback (most recent call last):
  File "other.py", line 1, in <module>
ValueError: of something else
(VllmWorker pid=3) ERROR [x.py:5] Traceback (most recent call last):
(VllmWorker pid=3) ERROR [x.py:5]   File "/srv/engine/core.py", line 85, in __init__
(VllmWorker pid=3) ERROR [x.py:5]     self.run()
(VllmWorker pid=3) ERROR [x.py:5]     ^^^^^^^^^^
(VllmWorker pid=3) ERROR [x.py:5]   File "torch/cuda/__init__.py", line 398, in _lazy_init
(VllmWorker pid=3) ERROR [x.py:5] RuntimeError: Cannot re-initialize CUDA in forked subprocess
later: Cannot re-initialize CUDA in forked subprocess
RuntimeError: Engine core initialization failed. See root cause above.
"""


def test_a_message_has_the_traceback_that_ends_in_it() -> None:
    poisoned, consequence = read(LOG.splitlines())
    assert (poisoned.line, poisoned.times) == (9, 2)
    assert poisoned.text.startswith("(VllmWorker pid=3) ERROR")
    places = [(frame.filename, frame.lineno, frame.name) for frame in poisoned.frames]
    assert places == [
        ("torch/cuda/__init__.py", 398, "_lazy_init"),
        ("/srv/engine/core.py", 85, "__init__"),
    ]
    assert (consequence.line, consequence.times) == (11, 1)


def test_a_message_without_frames_gets_them_of_its_second_line() -> None:
    (hit,) = read(["x: Cannot re-initialize CUDA in forked subprocess, ", *LOG.splitlines()[:9]])
    assert hit.line == 1
    assert len(hit.frames) == 2


def test_frames_of_another_error_are_not_taken() -> None:
    (hit,) = read([*LOG.splitlines()[:3], "Cannot re-initialize CUDA in forked subprocess"])
    assert hit.frames == ()


def test_the_short_form_of_pytest_is_read() -> None:
    lines = [
        "tests/test_a.py:7: in test_it",
        "    run()",
        "engine/core.py:9: in run",
        "E   RuntimeError: CUDA error: operation not permitted when stream is capturing",
    ]
    (hit,) = read(lines)
    assert [(frame.filename, frame.lineno) for frame in hit.frames] == [
        ("engine/core.py", 9),
        ("tests/test_a.py", 7),
    ]


def test_control_sequences_are_not_passed_on() -> None:
    (hit,) = read(['\x1b[31mFile "a\x1b[2J.py", line 1, in f', f"\x1b[31m{MESSAGES[0].words}"])
    assert "\x1b" not in hit.text + hit.frames[0].filename


LINES = st.one_of(
    st.text(),
    st.sampled_from([message.words for message in MESSAGES]),
    st.from_regex(r'\A  File "[^"]*", line \d+(, in .*)?\Z'),
)


@given(st.lists(LINES, max_size=20))
def test_any_text_can_be_read(lines: list[str]) -> None:
    hits = read(lines)
    assert len({hit.message for hit in hits}) == len(hits)
    assert all(1 <= hit.line <= len(lines) and hit.times >= 1 for hit in hits)

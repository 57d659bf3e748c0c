"""The picture in the README is one of what a session prints today."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.repo.test_docs_examples import needs_torch
from tools.draw_session import COLUMNS, PICTURE, SHOWN, session, words


def text_of(picture: Path) -> str:
    """Return the text in a picture, line after line."""
    lines: dict[int, list[tuple[float, str]]] = {}
    for text in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text"):
        line = re.search(r"line-(\d+)", text.get("clip-path", ""))
        if line:
            part = (float(text.get("x", "0")), text.text or "")
            lines.setdefault(int(line[1]), []).append(part)
    return "\n".join("".join(part for _, part in sorted(lines[line])) for line in sorted(lines))


@pytest.mark.slow
@needs_torch
def test_the_picture_says_what_a_session_says(tmp_path: Path) -> None:
    drawn = words(text_of(PICTURE).removeprefix("$"))
    real = words(" ".join(SHOWN) + session(tmp_path))
    assert drawn == real, "run `python tools/draw_session.py`"


def test_what_two_sessions_never_have_in_common_is_left_out() -> None:
    one = "\x1b[31m== FAILED ===\x1b[0m\n process 21 in 3.62s"
    assert words(one) == words("= FAILED ==== process 4242 in 5.1s")
    assert words(one) != words("= PASSED ==== process 4242 in 5.1s")


def test_the_picture_asks_no_server_for_anything() -> None:
    assert "url(http" not in PICTURE.read_text(encoding="utf-8")
    assert COLUMNS == 100

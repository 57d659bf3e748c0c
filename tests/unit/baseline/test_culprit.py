"""What a line is known by: the same wherever it moves, another one when its text changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_cudafork.baseline.culprit import Culprit, identify, is_gone, portable_path, shortened
from pytest_cudafork.observe.story.touch import Frame

SOURCE = """\
import torch

class Engine:
    device = torch.device(
        "cuda"  # the usual one
    )

    def start(self):
        if torch.cuda.is_available():
            return [torch.zeros(n) for n in range(3)]

@decorated(torch.cuda.device_count())
@other
def late(x=torch.cuda.is_available()): return x
"""
OPTIMIZED = 0x3


def known(path: Path, text: str, name: str, flags: int = OPTIMIZED) -> Culprit:
    """Return what the line with a text is known by."""
    lines = path.read_text().split("\n")
    number = next(n for n, line in enumerate(lines, 1) if text in line)
    return identify(Frame(str(path), number, name, flags), str(path.parent))


@pytest.mark.parametrize(
    ("text", "name", "flags", "scope", "statement"),
    [
        ("import torch", "<module>", 0, "<module>", "import torch"),
        ("torch.device(", "Engine", 0, "Engine", 'device = torch.device( "cuda" # the usual one )'),
        ("is_available():", "Engine.start", 3, "Engine.start", "if torch.cuda.is_available():"),
        ("is_available():", "start", 3, "Engine.start", "if torch.cuda.is_available():"),
        (
            "torch.zeros",
            "Engine.start.<locals>.<listcomp>",
            3,
            "Engine.start",
            "return [torch.zeros(n) for n in range(3)]",
        ),
        ("@decorated", "<module>", 0, "<module>", "@decorated(torch.cuda.device_count())"),
        ("def late", "late", 3, "late", "def late(x=torch.cuda.is_available()): return x"),
    ],
)
def test_a_culprit_is_its_statement_wherever_the_line_is(
    tmp_path: Path, text: str, name: str, flags: int, scope: str, statement: str
) -> None:
    path = tmp_path / "engine.py"
    path.write_text(SOURCE)
    assert known(path, text, name, flags) == Culprit("engine.py", scope, statement)
    path.write_text("# one more\n\n" + SOURCE.replace("class Engine", "\nclass Engine"))
    os.utime(path, (1, 1))
    assert known(path, text, name, flags) == Culprit("engine.py", scope, statement)


def test_another_text_is_another_culprit_and_the_old_one_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "engine.py"
    path.write_text(SOURCE)
    before = known(path, "import torch", "<module>", 0)
    device = known(path, "torch.device(", "Engine", 0)
    assert not is_gone(before, str(tmp_path))
    assert not is_gone(device, str(tmp_path))
    path.write_text(SOURCE.replace("import torch", "import lazy_torch as torch"))
    os.utime(path, (1, 1))
    assert known(path, "as torch", "<module>", 0) != before
    assert is_gone(before, str(tmp_path))
    assert not is_gone(device, str(tmp_path))
    path.unlink()
    assert is_gone(device, str(tmp_path))
    for file in ("site-packages/torch/x.py", "python/threading.py", "tmp/x.py", "<string>", "/x"):
        assert not is_gone(Culprit(file, "<module>", "probe()"), str(tmp_path))
    assert not is_gone(device, str(tmp_path / "no such folder"))
    assert not is_gone(Culprit("engine.py", "f", ""), str(tmp_path))


def test_a_long_statement_is_cut_and_still_differs_behind_the_cut(tmp_path: Path) -> None:
    long = f"SIZES = [probe(), {', '.join(map(str, range(200)))}]"
    assert shortened("x = probe()") == "x = probe()"
    assert len(shortened(long)) < 190
    assert shortened(long) != shortened(long.replace("199", "200"))
    path = tmp_path / "sizes.py"
    path.write_text(long)
    assert not is_gone(Culprit("sizes.py", "<module>", shortened(long)), str(tmp_path))


@pytest.mark.parametrize(
    ("filename", "shown"),
    [
        ("/repo/tests/a.py", "tests/a.py"),
        ("/repo/.venv/lib/python3.11/site-packages/vllm/a.py", "site-packages/vllm/a.py"),
        ("/usr/lib/python3/dist-packages/vllm/a.py", "site-packages/vllm/a.py"),
        ("/usr/lib/python3.12/threading.py", "python/threading.py"),
        ("/tmp/pytest-of-ci/pytest-31/popen-gw1/test_x0/a.py", "tmp/test_x0/a.py"),
        ("/opt/a.py", "/opt/a.py"),
        ("<string>", "<string>"),
    ],
)
def test_a_path_is_the_same_in_every_checkout(filename: str, shown: str) -> None:
    assert portable_path(filename, "/repo") == shown


def test_what_has_no_source_is_known_by_its_scope(tmp_path: Path) -> None:
    frame = Frame("<string>", 3, "probe", OPTIMIZED)
    assert identify(frame, str(tmp_path)) == Culprit("<string>", "probe", "")

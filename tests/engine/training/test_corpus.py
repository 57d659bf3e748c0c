"""The corpus: which file is on which side, for ever, and windows over it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sample_engine.errors import ConfigError
from tools.training.corpus import Windows, load_corpus, split_of


def test_no_file_of_this_python_is_on_two_sides() -> None:
    corpus = load_corpus()

    texts = {
        name: bytes(getattr(corpus, name).clamp(max=255).to(torch.uint8).numpy())
        for name in ("train", "validation", "held_out", "tests")
    }
    files = {name: set(text.split(b"\xff")) - {b""} for name, text in texts.items()}
    for name in ("validation", "held_out"):
        others = set().union(*(files[other] for other in files if other != name))
        assert files[name]
        assert not files[name] & others
    assert 0.01 < len(texts["held_out"]) / len(texts["train"]) < 0.15
    assert corpus.facts["held_out_files"] == len(files["held_out"])


def test_the_split_depends_on_the_path_alone() -> None:
    # Pinned: weights that were trained once must keep their held-out files for ever.
    assert [
        split_of(path)
        for path in ("tarfile.py", "bisect.py", "argparse.py", "test/test_tarfile.py")
    ] == ["held_out", "validation", "train", "tests"]
    assert split_of("json/tests/test_decode.py") == "tests"
    assert split_of("unittest/test.py") != "tests"


def test_files_end_with_a_token_and_others_are_left_out(library: Path) -> None:
    corpus = load_corpus(library)

    parts = [getattr(corpus, name) for name in ("train", "validation", "held_out", "tests")]
    assert sum(int((part == 256).sum()) for part in parts) == 90
    assert all(int(part[-1]) == 256 for part in parts)
    assert not any(b"left_out" in bytes(part[part < 256].to(torch.uint8).numpy()) for part in parts)
    assert corpus.facts["source"] == "library"
    assert load_corpus(library).facts == corpus.facts


def test_a_text_that_is_held_out_is_not_trained_on_under_another_name(library: Path) -> None:
    before = load_corpus(library)
    names = [path.relative_to(library).as_posix() for path in library.rglob("*.py")]
    held_out = next(name for name in names if split_of(name) == "held_out")
    copy = next(f"copy_{i}.py" for i in range(99) if split_of(f"copy_{i}.py") == "train")
    (library / copy).write_bytes((library / held_out).read_bytes())

    after = load_corpus(library)

    assert torch.equal(after.train, before.train)
    assert torch.equal(after.held_out, before.held_out)


def test_a_folder_that_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("one = 1\n", encoding="utf-8")

    with pytest.raises(ConfigError, match=r"has no Python files for the split .*lib/python3\.12"):
        load_corpus(tmp_path)


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(20, 200),
    size=st.integers(1, 10),
    aligned=st.booleans(),
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=4),
)
def test_windows_cover_a_corpus_evenly(
    length: int, size: int, aligned: bool, counts: list[int]
) -> None:
    drawn = Windows(torch.arange(length), size, 0, aligned)

    windows = torch.cat([drawn.next(count) for count in counts])

    assert windows.shape == (sum(counts), size)
    assert torch.equal(windows, windows[:, :1] + torch.arange(size))
    if aligned:
        assert not (windows[:, 0] % size).any()
    first_epoch = windows[: (length - size) // size].flatten()
    assert len(first_epoch.unique()) == len(first_epoch)
    same = Windows(torch.arange(length), size, 0, aligned)
    assert torch.equal(torch.cat([same.next(count) for count in counts]), windows)


def test_a_corpus_smaller_than_its_windows_is_refused() -> None:
    with pytest.raises(ConfigError, match="19 tokens is too small for windows of 10"):
        Windows(torch.arange(19), 10, 0)

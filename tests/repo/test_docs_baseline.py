"""The page on the baseline of the check is followed word by word, in an empty folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.repo.sources import DOCS
from tests.repo.test_docs_imports import status_of

pytestmark = pytest.mark.slow

PAGE = DOCS / "how-to" / "baseline.md"
BEFORE = """\
import ctypes
import os

HAS_GPU = ctypes.CDLL("libcuda.so.1").cuInit(0) == 0


def test_start():
    if os.fork() == 0:
        os._exit(0)


def test_other():
    pass
"""
REPAIRED = BEFORE.replace('ctypes.CDLL("libcuda.so.1").cuInit(0) == 0', "False")


def test_the_page_works_word_by_word(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    update, check, shrink, shard = re.findall(r"^pytest .*$", text, re.M)
    (merge,) = re.findall(r"^python -m pytest_cudafork merge .*$", text, re.M)
    suite, baseline = tmp_path / "test_engine.py", tmp_path / "cuda-baseline.toml"
    suite.write_text(BEFORE, encoding="utf-8")
    for command in (update, check):
        status, said = status_of(command, tmp_path)
        assert status == 0, said
    accepted = baseline.read_text(encoding="utf-8")
    assert "HAS_GPU" in accepted

    suite.write_text(REPAIRED, encoding="utf-8")
    status, said = status_of(shrink, tmp_path)
    assert status == 0, said
    assert "HAS_GPU" not in baseline.read_text(encoding="utf-8")

    baseline.write_text(accepted, encoding="utf-8")
    for number, tests in enumerate(("-k start", "-k other"), 1):
        command = shard.replace("shard-1", f"shard-{number}").replace("...", tests)
        status, said = status_of(command, tmp_path)
        assert status == 0, said
    status, said = status_of(merge.replace("shard-*", "shard-1.jsonl shard-2"), tmp_path)
    assert status == 0, said
    assert "0 now, 0 added, 1 removed" in said
    assert "HAS_GPU" not in baseline.read_text(encoding="utf-8")

"""``explain``: from a file or standard input, as text or JSON, and for input that is no log."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.__main__ import main as commands
from pytest_cudafork.documents.form import head
from pytest_cudafork.explain.command_line import main
from tests.support.documents import validated

LOG = """\
Traceback (most recent call last):
  File "vllm/v1/attention/flash_attn.py", line 176, in FlashAttentionMetadataBuilder
  File "torch/cuda/__init__.py", line 398, in _lazy_init
RuntimeError: Cannot re-initialize CUDA in forked subprocess
RuntimeError: Engine core initialization failed. See root cause above.
"""


def given(data: bytes, *, terminal: bool = False) -> SimpleNamespace:
    """Return a standard input."""
    return SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(data)), isatty=lambda: terminal)


def test_a_file_is_explained_causes_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_text(LOG)
    assert commands(["explain", str(tmp_path / "log")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("poisoned-child: ")
    assert "\n  line 4, from torch: RuntimeError: Cannot re-initialize" in said
    assert "flash_attn.py:176 in FlashAttentionMetadataBuilder: a class body" in said
    assert "    python -m pytest_cudafork run YOUR_SCRIPT.py ..." in said
    assert "    python -m pytest_cudafork imports vllm    # every" in said
    assert said.index("poisoned-child") < said.index("\nconsequence: ")


def test_a_log_of_ours_is_not_said_to_lack_the_lines_that_it_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_text(
        "E   CudaForkError: fork refused at engine.py:18: CUDA was initialized at flash.py:7\n"
        "E   fork refused: this process has initialized CUDA, so a child forked from it can never "
        'use CUDA ("Cannot re-initialize CUDA in forked subprocess").\n'
    )
    assert commands(["explain", str(tmp_path / "log")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("told-already: ")
    assert "\n  line 1, from pytest-cudafork: " in said
    assert "poisoned-child" not in said
    assert "does not show" not in said


def test_standard_input_and_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", given(LOG.encode(), terminal=True))
    assert main(["--json"]) == 0
    said = capsys.readouterr()
    assert "Ctrl-D" in said.err
    data = validated(json.loads(said.out), "explain")
    assert [each["kind"] for each in data["errors"]] == ["poisoned-child", "consequence"]
    (message,) = data["errors"][0]["messages"]
    assert message["frames"][0] == ["torch/cuda/__init__.py", 398, "_lazy_init"]
    assert message["source"]


def test_a_log_without_a_known_error_is_said_to_be_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", given(b"ValueError: of something else\n"))
    assert main([]) == 1
    assert "none of the known messages" in capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", given(b"ValueError: of something else\n"))
    assert main(["--json"]) == 1
    empty = {**head("explain"), "version": 1, "known": False, "errors": []}
    assert validated(json.loads(capsys.readouterr().out), "explain") == empty


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the input is empty"),
        (b" \n\n", "the input is empty"),
        (b"\x7fELF\x00\x01", "it holds null bytes"),
        (b"\x00" * 9000, "the input is empty"),
    ],
)
def test_no_text_is_an_error(
    data: bytes,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", given(data))
    with pytest.raises(SystemExit) as caught:
        main(["-"])
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nosuch", "."):
        with pytest.raises(SystemExit):
            main([str(tmp_path / name)])
        assert f"error: {tmp_path / name}: " in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SystemExit):
        main([])
    assert "there is no standard input" in capsys.readouterr().err


def test_odd_encodings_and_endless_lines_are_read(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"\xe9\n" + LOG.encode())
    assert main([str(tmp_path / "latin")]) == 0
    (tmp_path / "wide").write_text(LOG, encoding="utf-16")
    assert main([str(tmp_path / "wide")]) == 0
    (tmp_path / "hole").write_bytes(b"\0" * 9000 + LOG.encode())
    assert main([str(tmp_path / "hole")]) == 0
    (tmp_path / "long").write_bytes(b"x" * (3 << 20) + b"\n" + LOG.encode())
    assert main([str(tmp_path / "long")]) == 0


def steps_of(log: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return what is to be done next by the first error of a log."""
    monkeypatch.setattr(sys, "stdin", given(log.encode()))
    assert main(["--json"]) == 0
    return json.loads(capsys.readouterr().out)["errors"][0]["next"]


def test_the_workaround_is_first_and_that_of_vllm_in_its_logs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "RuntimeError: Cannot re-initialize CUDA in forked subprocess\n"
    plain = steps_of(words, monkeypatch, capsys)
    assert "get_context('spawn') or 'forkserver'" in plain[0]
    assert not [step for step in plain if "VLLM" in step]
    for log in (LOG, f"(EngineCore_DP0 pid=3) ERROR {words}"):
        first, second, run, *_ = steps_of(log, monkeypatch, capsys)
        assert first.startswith("VLLM_WORKER_MULTIPROC_METHOD=spawn YOUR_COMMAND")
        assert second == plain[0]
        assert run.startswith("python -m pytest_cudafork run ")
    no_gpu = steps_of("(VllmWorker) No CUDA GPUs are available", monkeypatch, capsys)
    assert not [step for step in no_gpu if "VLLM" in step]


def test_text_in_place_of_a_file_is_told_where_it_belongs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        commands(["explain", "Cannot re-initialize CUDA in forked subprocess"])
    said = capsys.readouterr().err
    assert "No such file or directory: name a file, or none and paste the text, which" in said

"""The lines before the first test: what is checked and with which eyes, how graphs are captured."""

from __future__ import annotations

import builtins
import io
import multiprocessing
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.capture import choose
from pytest_cudafork.report import header as header_module
from pytest_cudafork.report.header import graph_line, header, limits_of
from pytest_cudafork.settings import Level
from pytest_cudafork.settings.devices import Device, DeviceKind
from pytest_cudafork.settings.options import Settings


def observer(device: str = "absent", *, early: bool = False, limits: tuple[str, ...] = ()) -> Any:
    """Return what the header asks of an observer."""
    return SimpleNamespace(
        settings=SimpleNamespace(device=device),
        witnesses=SimpleNamespace(words="made up", limits=limits),
        early=early,
    )


def parts(device: str = "absent") -> dict[str, str]:
    """Return the parts of the first line by their first word."""
    line = header(Settings(level=Level.FORK), observer(device))[0]
    return dict(part.split(" ", 1) for part in line.removeprefix("cuda-fork: ").split(", "))


@pytest.fixture(autouse=True)
def nothing_of_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the machine have none, nor a part of it."""
    monkeypatch.setattr(header_module, "has_kernel_part", lambda: False)


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("real", "real"),
        ("none", "none"),
        ("absent", "phantom (no GPU)"),
        ("sm_90", "phantom (sm_90)"),
    ],
)
def test_the_device_is_told_in_words(device: str, words: str) -> None:
    assert parts(device)["device"] == words


def test_the_first_line_names_level_witness_and_versions() -> None:
    told = parts()
    assert list(told) == ["level", "device", "witness", "start", "torch", "driver"]
    assert (told["level"], told["witness"]) == ("fork", "made up")


def test_what_is_not_observable_has_a_line_each() -> None:
    made = observer(early=True, limits=("one", "two"))
    lines = header(Settings(), made)
    assert lines[2:] == ["cuda-fork: not observable: one", "cuda-fork: not observable: two"]
    assert "CUDA was already initialized when the watch began" in lines[1]
    assert limits_of(SimpleNamespace(witnesses=None, early=False)) == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(("chosen", "words"), [("spawn", "method spawn"), (None, "(default)")])
def test_the_start_method_is_the_one_in_force(
    chosen: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: chosen)
    assert parts()["start"].endswith(words)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5", "550.54.15"),
        ("something else", "unknown"),
        (None, "none"),
    ],
)
def test_the_driver_is_told_by_its_version(
    text: str | None, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_it(*args: Any, **kwargs: Any) -> io.StringIO:
        if text is None:
            raise FileNotFoundError
        return io.StringIO(text)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", open_it)
        patch.setattr(header_module, "version_of", lambda name: "2.9.0")
        told = parts()
    assert (told["driver"], told["torch"]) == (version, "2.9.0")


def test_torch_that_is_not_installed_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    assert parts()["torch"] == "none"


@pytest.mark.parametrize("metadata", [None, b"", b"Name: torch\n", b"\xff\xfe"])
def test_torch_whose_metadata_are_broken_is_of_an_unknown_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metadata: bytes | None
) -> None:
    info = tmp_path / "torch-2.9.0.dist-info"
    info.mkdir()
    if metadata is not None:
        (info / "METADATA").write_bytes(metadata)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert parts()["torch"] == "unknown"


def item(backend: str | None = None, *, captures: bool = True) -> Any:
    """Return a test that captures graphs, or not; with the backend of its marker."""
    call = None if backend is None else SimpleNamespace(params={"graph_backend": backend})
    names = ["graph_backend"] if captures else []
    return SimpleNamespace(fixturenames=names, callspec=call)


BOTH = [item("software"), item("cuda")]


@pytest.mark.parametrize(
    ("asked", "items", "reason", "line"),
    [
        (None, [item()], "no GPU", "graphs: software (no GPU)"),
        (None, [item()], None, "graphs: cuda"),
        ("software", [item()], None, "graphs: software"),
        (None, BOTH, None, "graphs: software, cuda"),
        (None, BOTH, "no GPU", "graphs: software; cuda skipped (no GPU)"),
        ("cuda", BOTH, None, "graphs: cuda; software skipped (--cuda-fork-graphs=cuda)"),
        ("cuda", [item()], "no GPU", "graphs: none; cuda skipped (no GPU)"),
        (None, [item(captures=False), item("cuda")], None, "graphs: cuda"),
    ],
)
@pytest.mark.parametrize("torch_is_imported", [False, True])
def test_graphs_are_told_with_the_reason_for_what_does_not_run(
    asked: str | None,
    items: list[Any],
    reason: str | None,
    line: str,
    torch_is_imported: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(header_module, "torch_is_missing", lambda: False)
    monkeypatch.setattr(choose, "why_no_gpu", lambda: reason)
    monkeypatch.setattr(choose, "why_not", lambda name: reason)
    with monkeypatch.context() as patch:
        if not torch_is_imported:
            patch.delitem(sys.modules, "torch", raising=False)
        told = graph_line(Settings(graphs=asked), items)
    assert told == line


@pytest.mark.parametrize("asked", [None, "software", "cuda"])
def test_without_torch_no_graph_runs(asked: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header_module, "torch_is_missing", lambda: True)
    assert graph_line(Settings(graphs=asked), BOTH) == "graphs: none (torch is not installed)"


def test_a_phantom_beside_a_part_of_a_driver_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header_module, "has_kernel_part", lambda: True)
    monkeypatch.setattr(header_module, "why_no_driver", lambda: "its library is missing")
    told = "cuda-fork: the phantom stands in for the driver: its library is missing"
    assert header(Settings(level=Level.FORK), observer())[1:] == [told]
    assert header(Settings(level=Level.FORK), observer("real"))[1:] == []
    asked = Settings(level=Level.FORK, device=Device(DeviceKind.PHANTOM))
    assert header(asked, observer())[1:] == []

"""Where graphs can be captured, and what is done where they cannot."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from pytest_cudafork.capture.in_tests import possible
from pytest_cudafork.capture.in_tests.possible import (
    FIXTURE,
    after_captures_are_possible,
    any_asks_for_graphs,
    captures_are_possible,
    options_to_add,
)
from pytest_cudafork.settings import Level
from pytest_cudafork.settings.devices import Device, DeviceKind
from pytest_cudafork.settings.options import Settings

BACKEND, STAND_INS = (
    "pytest_cudafork.capture.software.backend",
    "pytest_cudafork.capture.stand_ins.capturing.graphs",
)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Nothing that captures is imported, and there is no driver."""
    for name in (BACKEND, STAND_INS, "torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(possible, "has_real_driver", lambda: False)
    monkeypatch.setattr(possible, "torch_is_missing", lambda: False)
    return monkeypatch


def test_without_a_driver_and_the_software_graph_nothing_can_be_captured(
    bare: pytest.MonkeyPatch,
) -> None:
    assert not captures_are_possible()
    bare.setattr(possible, "has_real_driver", lambda: True)
    assert captures_are_possible()


@pytest.mark.parametrize("name", [BACKEND, STAND_INS])
def test_with_the_software_graph_it_can(bare: pytest.MonkeyPatch, name: str) -> None:
    bare.setitem(sys.modules, name, ModuleType(name))
    assert captures_are_possible()


def test_torch_for_amd_asks_other_files(bare: pytest.MonkeyPatch) -> None:
    torch = ModuleType("torch")
    cast(Any, torch).version = SimpleNamespace(hip="6.4")
    bare.setitem(sys.modules, "torch", torch)
    assert captures_are_possible()


def test_options_without_which_code_for_a_gpu_captures_nothing_are_named(
    bare: pytest.MonkeyPatch,
) -> None:
    software, present = "--cuda-fork-graphs=software", "--cuda-fork-device=phantom:sm_90"
    shown = Settings(level=Level.FORK, device=Device(DeviceKind.PHANTOM, "sm_90"))
    assert software in options_to_add(Settings())
    assert present in options_to_add(Settings())
    assert software in options_to_add(shown)
    assert present not in options_to_add(shown)
    assert software not in options_to_add(Settings(graphs="software"))
    assert options_to_add(shown._replace(graphs="software")) == ""
    assert options_to_add(Settings(graphs="cuda")) == ""
    bare.setattr(possible, "has_real_driver", lambda: True)
    assert options_to_add(Settings()) == ""


@pytest.mark.parametrize("graphs", [None, "software", "cuda"])
def test_without_torch_no_option_is_advised(bare: pytest.MonkeyPatch, graphs: str | None) -> None:
    bare.setattr(possible, "torch_is_missing", lambda: True)
    told = "torch is not installed, so there is nothing to look at"
    assert options_to_add(Settings(graphs=graphs)) == told


def test_tests_ask_by_the_fixture() -> None:
    plain, asking, other = (
        cast(pytest.Item, SimpleNamespace(fixturenames=["tmp_path"])),
        cast(pytest.Item, SimpleNamespace(fixturenames=["runner", FIXTURE])),
        cast(pytest.Item, SimpleNamespace()),
    )
    assert not any_asks_for_graphs([plain, other])
    assert any_asks_for_graphs([plain, other, asking])


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """Two modules that stand for those of the software graph."""
    names = "cudafork_stands_for_one", "cudafork_stands_for_another"
    for name in names:
        (tmp_path / f"{name}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(possible, "_SOFTWARE", names)
    yield names
    for name in names:
        sys.modules.pop(name, None)


def test_what_makes_it_possible_is_heard_of_once(names: tuple[str, str]) -> None:
    heard: list[int] = []
    undo = after_captures_are_possible(lambda: heard.append(1))
    assert heard == []
    for name in names:
        importlib.import_module(name)
    assert heard == [1]
    undo()


def test_the_undo_takes_it_back(names: tuple[str, str]) -> None:
    heard: list[int] = []
    after_captures_are_possible(lambda: heard.append(1))()
    for name in names:
        importlib.import_module(name)
    assert heard == []

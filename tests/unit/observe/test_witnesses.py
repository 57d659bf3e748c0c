"""The choice of witnesses for a device, and what is said where one cannot be had."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from pytest_cudafork.compat import cpython_layout
from pytest_cudafork.observe import witnesses
from pytest_cudafork.observe.driver import native_libs
from pytest_cudafork.observe.driver.native_libs import NativeUnavailable, WitnessUnavailable
from pytest_cudafork.observe.driver.phantom import PhantomError
from pytest_cudafork.observe.torch import api
from pytest_cudafork.observe.witnesses import DRIVER_WITNESSES, DriverWitness, WitnessError, install
from pytest_cudafork.settings import environment


class InTheDriver:
    """Stands in for a witness that is in force."""

    def __init__(self, native: Any = "a library", reason: str = "") -> None:
        self.native, self.reason = native, reason
        self.undone = 0

    def undo(self) -> None:
        """Count it."""
        self.undone += 1


class InTorch:
    """Stands in for the witness in torch's Python API."""

    made: ClassVar[list[InTorch]] = []

    def __init__(self, face: str, record: Any, native: Any, poisoned: Any) -> None:
        self.face, self.native = face, native
        self.in_force = False
        self.touched = True
        self.writing = False
        self.made.append(self)

    def is_writing(self) -> bool:
        """Tell whether another thread is about to record a touch."""
        return self.writing

    def install(self) -> Any:
        """Be in force until the result is called."""
        self.in_force = True
        return lambda: setattr(self, "in_force", False)


@pytest.fixture(autouse=True)
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hook nothing in torch, which counts as installed."""
    monkeypatch.setattr(witnesses, "torch_is_missing", lambda: False)
    monkeypatch.setattr(api, "TorchWitness", InTorch)
    InTorch.made.clear()


def only(monkeypatch: pytest.MonkeyPatch, answer: Any, *, is_needed: bool = False) -> None:
    """Let the table have one row, whose witness is this or raises this."""

    def install_it(device: str) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    row = DriverWitness(
        "made up",
        lambda device: True,
        install_it,
        lambda device, environ: {"A": device},
        "touches",
        lambda device: is_needed,
    )
    monkeypatch.setattr(witnesses, "DRIVER_WITNESSES", (row,))


def put_in_force(device: str) -> witnesses.Witnesses:
    """Put the witnesses for a device in force."""
    return install(device, lambda entry, *, again, stack: None, lambda: False)


@pytest.mark.parametrize(
    ("device", "name"),
    [("real", "injection"), ("absent", "phantom driver"), ("sm_90x2", "phantom driver")],
)
def test_every_device_has_one_witness_in_its_driver(device: str, name: str) -> None:
    assert [one.name for one in DRIVER_WITNESSES if one.serves(device)] == [name]


@pytest.mark.parametrize(("device", "is_needed"), [("real", 0), ("absent", 0), ("sm_90", 1)])
def test_only_a_face_with_gpus_is_nothing_without_the_phantom(device: str, is_needed: bool) -> None:
    (row,) = [one for one in DRIVER_WITNESSES if one.serves(device)]
    assert row.is_needed(device) == is_needed


@pytest.mark.parametrize("error", [NativeUnavailable, PhantomError])
def test_each_reason_not_to_be_had_is_of_one_kind(error: type[Exception]) -> None:
    assert issubclass(error, WitnessUnavailable)


def test_without_a_device_nobody_watches() -> None:
    made = put_in_force("none")
    assert made.words == "none"
    assert made.native is None
    assert len(made.limits) == 1
    assert not InTorch.made
    assert not made.torch_touched()


@pytest.mark.parametrize(("device", "simulated"), [("real", False), ("sm_90", True)])
def test_both_witnesses_are_in_force_until_the_undo(
    device: str, simulated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = InTheDriver()
    only(monkeypatch, witness)
    made = put_in_force(device)
    (in_torch,) = InTorch.made
    assert made.words == "made up + torch API"
    assert made.limits == ()
    assert (in_torch.face, in_torch.native) == (device, "a library")
    assert in_torch.in_force
    assert made.torch_touched() == simulated
    made.undo()
    made.undo()
    assert (in_torch.in_force, witness.undone) == (False, 1)


@pytest.mark.parametrize("in_the_driver", [True, False])
@pytest.mark.parametrize("in_torch", [True, False])
def test_a_touch_is_being_written_while_one_of_them_is_at_it(
    in_the_driver: bool, in_torch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, InTheDriver(SimpleNamespace(is_writing=lambda: in_the_driver)))
    made = put_in_force("absent")
    InTorch.made[0].writing = in_torch
    assert made.is_writing() is (in_the_driver or in_torch)
    made.undo()


def test_a_witness_that_was_left_alone_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    witness = InTheDriver(native=None, reason="a profiler is there")
    only(monkeypatch, witness)
    made = put_in_force("real")
    assert made.words == "torch API"
    assert made.limits == ("touches by anything but torch: a profiler is there",)
    made.undo()
    assert witness.undone == 1


def test_a_witness_that_is_not_to_be_had_is_told_as_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only(monkeypatch, WitnessUnavailable("not built"))
    made = put_in_force("absent")
    assert (made.words, made.native) == ("torch API", None)
    assert made.limits == ("touches by anything but torch: not built",)
    assert InTorch.made[0].in_force


def test_no_torch_api_is_named_where_there_is_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witnesses, "torch_is_missing", lambda: True)
    only(monkeypatch, InTheDriver())
    assert put_in_force("absent").words == "made up"
    for answer in (WitnessUnavailable("not built"), InTheDriver(None, "not built")):
        only(monkeypatch, answer)
        made = put_in_force("absent")
        assert made.words == "none"
        assert made.limits == ("touches by anything (torch is not installed): not built",)


def test_a_witness_that_is_needed_and_not_to_be_had_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only(monkeypatch, WitnessUnavailable("not built"), is_needed=True)
    with pytest.raises(WitnessError, match=r"^phantom:sm_90: not built$"):
        put_in_force("sm_90")
    assert not InTorch.made


@pytest.mark.parametrize(
    ("native", "device", "known", "unseen"),
    [
        ("a library", "absent", True, False),
        ("a library", "absent", False, True),
        ("a library", "real", False, False),  # the driver itself is asked there
        (None, "absent", False, False),  # more than that is unseen, and told
    ],
)
def test_where_no_c_function_can_be_watched_it_is_said(
    monkeypatch: pytest.MonkeyPatch, native: str | None, device: str, known: bool, unseen: bool
) -> None:
    only(monkeypatch, InTheDriver(native, "left alone"))
    monkeypatch.setattr(cpython_layout, "is_known", lambda: known)
    found = put_in_force(device)
    assert any("pin_memory=True" in limit for limit in found.limits) is unseen
    found.undo()


def test_a_program_that_is_no_python_has_the_witness_in_its_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert witnesses.variables_without_python("none", {}) == {}
    injected = witnesses.variables_without_python("real", {})
    assert injected == {environment.INJECTION: native_libs.INJECTION}
    taken = {environment.INJECTION: "/opt/nsys.so"}
    assert witnesses.variables_without_python("real", taken) == {}
    own = {environment.LIBRARY_PATH: "/usr/lib"}
    found = witnesses.variables_without_python("sm_90", own)
    assert found[environment.FACE] == "sm_90"
    driver, nvml = (
        os.path.dirname(native_libs.PHANTOM_DRIVER),
        os.path.dirname(native_libs.PHANTOM_NVML),
    )
    assert found[environment.LIBRARY_PATH] == f"{driver}:{nvml}:/usr/lib"
    again = witnesses.variables_without_python("sm_90", found)
    assert again == found
    monkeypatch.setattr(native_libs, "why_not", lambda: "they were not built")
    assert witnesses.variables_without_python("absent", {}) == {}

"""Tests of what is asked of the driver; a stand-in for its library answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.health import driver
from pytest_cudafork.observe.driver import native_libs, probe
from pytest_cudafork.settings.real_driver import LIBCUDA


class _Library:
    """Two devices; the primary contexts are the numbers 11 and 12, another context is 7."""

    def __init__(self) -> None:
        self.errors: dict[int, list[int]] = {}
        """What a context answers to the next synchronizations; the last answer stays."""
        self.active = {0: True, 1: False}
        self.stack = [11]
        self.retained = {0: 1, 1: 0}
        self.capture = (0, 0)
        self.retain_answer = self.push_answer = 0
        self.log = "[E] it broke"
        self.log_from: list[int | None] = []

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = 2
        return 0

    def cuCtxGetCurrent(self, context: Any) -> int:
        context._obj.value = self.stack[-1] if self.stack else None
        return 0

    def cuCtxGetDevice(self, device: Any) -> int:
        device._obj.value = max(0, self.stack[-1] - 11)
        return 0

    def cuDevicePrimaryCtxGetState(self, device: int, flags: Any, active: Any) -> int:
        active._obj.value = self.active[device]
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: int) -> int:
        if not self.retain_answer:
            self.retained[device] += 1
            context._obj.value = 11 + device
        return self.retain_answer

    def cuDevicePrimaryCtxRelease_v2(self, device: int) -> int:
        self.retained[device] -= 1
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:
        if not self.push_answer:
            self.stack.append(context.value)
        return self.push_answer

    def cuCtxPopCurrent_v2(self, context: Any) -> int:
        self.stack.pop()
        return 0

    def cuCtxSynchronize(self) -> int:
        answers = self.errors.get(self.stack[-1], [0])
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def cuStreamIsCapturing(self, stream: None, status: Any) -> int:
        code, status._obj.value = self.capture
        return code

    def cuGetErrorName(self, code: int, text: Any) -> int:
        text._obj.value = b"CUDA_ERROR_ILLEGAL_ADDRESS" if code == 700 else None
        return 0

    def cuGetErrorString(self, code: int, text: Any) -> int:
        text._obj.value = b"an illegal memory access was encountered" if code == 700 else None
        return 0

    def cuLogsCurrent(self, place: Any, flags: int) -> int:
        place._obj.value = 5
        return 0

    def cuLogsDumpToMemory(self, place: Any, text: Any, size: Any, flags: int) -> int:
        self.log_from.append(None if place is None else place._obj.value)
        if place is not None:
            place._obj.value = 99  # as the real one does
        text.value = self.log.encode()
        return 0


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> _Library:
    """The stand-in, which is initialized."""
    made = _Library()
    monkeypatch.setattr(native_libs, "mapped", lambda name: made)
    initialized = probe.DriverAnswer(probe.Driver.INITIALIZED)
    monkeypatch.setattr(probe, "ask_driver", lambda: initialized)
    return made


def _looked() -> driver.Driver:
    made = driver.Driver()
    made.look()
    return made


@pytest.mark.parametrize(
    ("counts", "times"),
    [([5, 5, 6, 6], [1, 1, 2, 2]), ([None, None], [1, 2])],
    ids=["counted", "not known"],
)
def test_a_driver_is_looked_for_when_something_was_loaded_and_not_for_each_question(
    counts: list[int | None], times: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    monkeypatch.setattr(native_libs, "mapped", looked.append)
    told = iter(counts)
    monkeypatch.setattr(native_libs.LoadedLibraries, "count", lambda _: next(told))
    asked = driver.Driver()
    for many in times:
        asked.look()
        answers = (asked.is_capturing(), asked.broken(), asked.refused_a_capture(), asked.log())
        assert answers == (False, None, False, "")
        assert looked == [LIBCUDA] * many


def test_what_is_asked_goes_by_the_last_look(
    library: _Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.errors[11] = [700]
    asked = _looked()
    gone = probe.DriverAnswer(probe.Driver.POISONED)
    monkeypatch.setattr(probe, "ask_driver", lambda: gone)  # as after a fork
    assert asked.broken() is not None
    asked.look()
    assert not asked.is_initialized
    assert asked.broken() is None


def test_a_driver_that_is_not_there_or_not_initialized_is_asked_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for mapped in (None, SimpleNamespace()):  # any question would be an AttributeError
        monkeypatch.setattr(native_libs, "mapped", lambda name, it=mapped: it)
        clean = probe.DriverAnswer(probe.Driver.NOT_INITIALIZED)
        monkeypatch.setattr(probe, "ask_driver", lambda answer=clean: answer)
        asked = _looked()
        asked.begin()
        answers = (asked.is_initialized, asked.is_capturing(), asked.broken(), asked.log())
        assert answers == (False, False, None, "")


def test_a_healthy_driver_is_left_as_it_was(library: _Library) -> None:
    library.active[1] = True
    asked = _looked()
    assert asked.is_initialized
    assert asked.broken() is None
    assert library.stack == [11]
    assert library.retained == {0: 1, 1: 0}


@pytest.mark.parametrize("context", [11, 12, 7])
def test_a_context_that_repeats_its_error_is_broken(library: _Library, context: int) -> None:
    library.active[1] = True
    library.errors[context] = [700]
    library.stack = [7, 11] if context == 12 else [context]
    found = _looked().broken()
    assert found is not None
    assert found.device == (1 if context == 12 else 0)
    assert str(found).endswith(
        "is broken: CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered"
    )
    assert library.retained == {0: 1, 1: 0}


@pytest.mark.parametrize("answers", [[700, 0], [201], [801], [900], [906], [4]])
def test_an_error_that_goes_away_or_says_nothing_of_health_is_none(
    library: _Library, answers: list[int]
) -> None:
    library.errors[11] = answers
    assert _looked().broken() is None


@pytest.mark.parametrize("name", ["retain_answer", "push_answer"])
def test_a_context_that_cannot_even_be_taken_is_broken(library: _Library, name: str) -> None:
    library.active[1] = True
    setattr(library, name, 719)
    library.stack = [7]
    found = _looked().broken()
    assert found is not None
    assert (found.code, found.name, found.words) == (719, "error 719", "unknown to this driver")


def test_without_a_current_context_the_primary_ones_are_asked(library: _Library) -> None:
    library.stack = []
    assert _looked().broken() is None
    library.errors[11] = [710]
    found = _looked().broken()
    assert found is not None
    assert found.device == 0


@pytest.mark.parametrize(
    ("answer", "capturing"), [((0, 0), False), ((0, 1), True), ((906, 0), True)]
)
def test_a_capture_is_seen(library: _Library, answer: tuple[int, int], capturing: bool) -> None:
    library.capture = answer
    assert _looked().is_capturing() is capturing


def test_the_log_is_that_of_the_test_or_all_of_it(library: _Library) -> None:
    asked = _looked()
    assert asked.log() == "[E] it broke"
    asked.begin()
    asked.log()
    asked.log()
    assert library.log_from == [None, 5, 5]


def test_a_capture_that_the_driver_has_refused_stands_in_its_log(library: _Library) -> None:
    asked = _looked()
    assert not asked.refused_a_capture()
    library.log = "[E] Returning 900 (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) from cuStreamSync"
    assert asked.refused_a_capture()


def test_an_older_driver_keeps_no_log(library: _Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(_Library, "cuLogsCurrent")
    monkeypatch.delattr(_Library, "cuLogsDumpToMemory")
    asked = _looked()
    asked.begin()
    assert asked.log() == ""

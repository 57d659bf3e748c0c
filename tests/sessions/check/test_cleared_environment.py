"""Tests that clear the environment for a while (``mock.patch.dict(os.environ, clear=True)``)."""

from __future__ import annotations

import pytest

from tests.support.sessions import check, counts, failure, module, outcomes

CLEARED = """
from unittest import mock


def test_a_child_of_an_initialized_process():
    with mock.patch.dict(os.environ, clear=True):
        touch()
        child(lambda: ctypes.CDLL("libcuda.so.1").cuInit(0))
"""


def test_a_poisoned_child_is_found_though_the_environment_was_cleared(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(module(CLEARED))
    result = check(pytester, "poison")
    assert outcomes(result) == {"test_a_child_of_an_initialized_process": "FAILED"}
    assert counts(result)["poisoned touches"] == 1
    assert "not observable" not in result.stdout.str()


def test_a_present_phantom_stays_present_in_a_cleared_environment(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        module(
            """
            from unittest import mock

            def test_count():
                count = ctypes.c_int()
                with mock.patch.dict(os.environ, clear=True):
                    driver = ctypes.CDLL("libcuda.so.1")
                    assert driver.cuInit(0) == 0
                    assert driver.cuDeviceGetCount(ctypes.byref(count)) == 0
                assert count.value == 2
            """.replace("\n            ", "\n")
        )
    )
    result = check(pytester, "fork", "--cuda-fork-device=phantom:sm_90x2")
    assert outcomes(result) == {"test_count": "PASSED"}


def test_a_plain_call_tells_who_called_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        module(
            """
            def ask():
                touch()

            def test_asks():
                ask()
            """.replace("\n            ", "\n")
        )
    )
    text = failure(check(pytester, "touch"), "test_asks")
    assert "in ask" in text
    assert "called from:" in text
    assert " in test_asks" in text.partition("called from:")[2]

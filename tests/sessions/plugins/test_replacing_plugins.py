"""Isolated tests with plugins and libraries that replace functions of the standard library."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.isolation import METHODS
from tests.support.isolation_plugins import needs, same
from tests.support.sessions import check, counts, failure, line_of, outcomes

FILES = {
    "test_files.py": """
        import os
        import tempfile
        from pathlib import Path

        import pytest

        def test_no_real_file_is_there(fs):
            print("printed")
            fs.create_file("/made/up", contents="text")
            assert Path("/made/up").read_text() == "text"
            assert not os.path.exists("/proc")

        def test_fails(fs):
            print("printed before")
            assert os.path.exists("/never")

        @pytest.fixture
        def broken(fs):
            raise ValueError("in setup")

        def test_is_not_set_up(broken):
            pass

        def test_for_the_whole_module(fs_module):
            fs_module.create_file("/made/up")

        def test_for_it_too(fs_module):
            assert os.getcwd()
        """,
    "test_time.py": """
        import datetime
        import time

        import freezegun
        import time_machine

        @freezegun.freeze_time("1999-12-31")
        def test_time_stands_still():
            assert time.monotonic() == time.monotonic()
            assert datetime.date.today().year == 1999

        @time_machine.travel(0, tick=False)
        def test_it_is_1970():
            assert time.time() == 0

        def test_it_is_not():
            assert time.time() > 1e9
        """,
    "test_network.py": """
        import socket

        import pytest
        import pytest_socket

        def test_there_is_no_network():
            with pytest.raises(pytest_socket.SocketBlockedError):
                socket.socket()

        def test_nor_a_pair():
            with pytest.raises(pytest_socket.SocketBlockedError):
                socket.socketpair()
        """,
}


def test_what_they_replace_is_no_matter_of_how_a_test_is_reported(tmp_path: Path) -> None:
    for library in ("freezegun", "time_machine"):
        pytest.importorskip(library)
    found = same(
        tmp_path,
        METHODS,
        ["pyfakefs", "socket", "time-machine"],
        FILES,
        "--disable-socket",
    )
    outcomes = "1 failed, 8 passed, 2 warnings, 1 error"
    for seen in found.values():
        assert any(outcomes in line for line in seen[0].stdout), seen[0].stdout


CHECKED = """
import ctypes
import os

import pytest
from pytest_cudafork import CudaForkError

DRIVER = ctypes.CDLL("libcuda.so.1")


def test_touches(fs):
    DRIVER.cuInit(0)


def test_is_refused(fs):
    DRIVER.cuInit(0)
    os.fork()  # refused


def test_expects_it(fs):
    DRIVER.cuInit(0)
    with pytest.raises(CudaForkError, match="test_it.py:"):
        os.fork()


def test_swallows_it(fs):
    DRIVER.cuInit(0)
    try:
        os.fork()
    except Exception:  # swallowed
        pass
"""


@pytest.mark.parametrize("method", ["", *METHODS])
def test_the_check_sees_what_a_test_does_that_has_no_real_file(
    pytester: pytest.Pytester, method: str
) -> None:
    plugin = needs("pyfakefs")
    path = pytester.makepyfile(test_it=CHECKED)
    isolated = [f"--cuda-fork-isolate={method}"] if method else []
    result = check(pytester, "fork", "-p", plugin, *isolated)
    assert outcomes(result) == {
        "test_touches": "PASSED",
        "test_is_refused": "FAILED",
        "test_expects_it": "PASSED",
        "test_swallows_it": "FAILED",
    }
    assert f"test_it.py:{line_of(path, '# refused')}" in failure(result, "test_is_refused")
    assert "> except Exception:  # swallowed" in failure(result, "test_swallows_it")
    assert counts(result)["in tests"] == 4
    assert counts(result)["forks guarded"] == 3

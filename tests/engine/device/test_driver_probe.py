"""The probe against drivers: none, one that is loaded, one that is initialized, one that is odd."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from sample_engine.device.driver_probe import DriverState, Evidence, judge, probe_driver

INITIALIZED, NOT_INITIALIZED, UNKNOWN = DriverState

DRIVER = """
#include <stdlib.h>
#include <unistd.h>
static int initialized_by, inits;
int cuInit(unsigned flags) { inits++; initialized_by = getpid(); return 0; }
int fake_inits(void) { return inits; }
#ifndef ODD
int cuDeviceGetCount(int *count)
{
    const char *answer = getenv("FAKE_ANSWER");
    *count = 1;
    return answer ? atoi(answer) : initialized_by == getpid() ? 0 : 3;
}
#endif
"""


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a stand-in for the driver, and one that is none, in ``odd``."""
    folder = tmp_path_factory.mktemp("drivers")
    (folder / "driver.c").write_text(DRIVER)
    for place, options in ((folder, []), (folder / "odd", ["-DODD"])):
        place.mkdir(exist_ok=True)
        command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", *options]
        try:
            subprocess.run(
                [*command, "-o", str(place / "libcuda.so.1"), str(folder / "driver.c")], check=True
            )
        except FileNotFoundError:
            pytest.skip("needs a C compiler (cc)")
    return folder


def run(code: str, library: Path, **environment: str) -> list[str]:
    """Run code in an interpreter of its own, with ``driver`` loaded; return what it prints."""
    head = f"""
    import ctypes, os
    from sample_engine.device.driver_probe import probe_driver
    driver = ctypes.CDLL({str(library / "libcuda.so.1")!r})
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(head) + textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.splitlines()


def test_a_loaded_driver_is_not_initialized_until_it_is(drivers: Path) -> None:
    code = """
    print(probe_driver().state.name, driver.fake_inits())
    driver.cuInit(0)
    print(probe_driver().state.name, driver.fake_inits())
    print(probe_driver().reason)
    """
    assert run(code, drivers) == [
        "NOT_INITIALIZED 0",
        "INITIALIZED 1",
        "the CUDA driver is initialized in this process (the driver says so)",
    ]


def test_in_a_forked_child_the_answer_no_says_nothing(drivers: Path) -> None:
    code = """
    driver.cuInit(0)
    if os.fork() == 0:
        print(probe_driver().state.name, probe_driver().reason.partition(",")[0], flush=True)
        os._exit(0)
    os.wait()
    """
    assert run(code, drivers) == ["UNKNOWN this process was itself forked"]


def test_a_library_that_is_no_driver_is_not_believed(drivers: Path) -> None:
    (line,) = run("print(*probe_driver())", drivers / "odd")
    assert "UNKNOWN" in line
    assert "has no cuDeviceGetCount" in line


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (0, INITIALIZED),
        (3, NOT_INITIALIZED),
        (4, INITIALIZED),
        (100, NOT_INITIALIZED),
        (999, UNKNOWN),
    ],
)
def test_each_answer_of_the_driver_has_its_meaning(
    drivers: Path, code: int, state: DriverState
) -> None:
    (line,) = run("print(probe_driver().state.name)", drivers, FAKE_ANSWER=str(code))
    assert line == state.name


def test_a_process_without_a_driver_is_not_initialized(tmp_path: Path) -> None:
    code = "from sample_engine.device.driver_probe import probe_driver as p; print(*p())"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout.strip().endswith("no CUDA driver is loaded in this process False")


def test_the_probe_imports_neither_torch_nor_the_plugin() -> None:
    code = """
    import sys
    from sample_engine.device.driver_probe import probe_driver
    probe_driver()
    print(*(name for name in ("torch", "pytest_cudafork", "pynvml") if name in sys.modules))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout.split() == []


def test_torch_on_this_machine_does_not_change_the_answer() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_initialized():
        pytest.skip("CUDA is initialized in this process")
    assert probe_driver().state is not INITIALIZED


FLAGS: list[bool | None] = [None, False, True]
EVIDENCE = [
    Evidence(loaded, code, *flags)
    for loaded, code in [(None, None), (False, None), (True, None)]
    + [(True, code) for code in (0, 3, 4, 100, 7)]
    for flags in itertools.product(FLAGS, FLAGS, FLAGS)
]


def test_every_piece_of_evidence_leads_to_an_answer_with_a_reason() -> None:
    for found in EVIDENCE:
        answer = judge(found)
        assert answer.reason
        assert answer.poisoned == bool(found.torch_in_bad_fork)


def test_no_evidence_of_initialization_is_ever_overruled() -> None:
    for found in EVIDENCE:
        speaks_for_it = (
            found.code in (0, 4) or bool(found.torch_initialized) or bool(found.torch_in_bad_fork)
        )
        assert (judge(found).state is INITIALIZED) == speaks_for_it, found


def test_not_initialized_is_said_only_where_it_is_known() -> None:
    for found in EVIDENCE:
        if judge(found).state is NOT_INITIALIZED:
            assert found.loaded is False or found.code == 100 or (found.code == 3)
            assert not (found.code == 3 and found.forked)


def test_a_driver_that_torch_does_not_see_is_told() -> None:
    assert "torch.cuda.is_initialized() is False" in judge(Evidence(True, 0, False, False)).reason

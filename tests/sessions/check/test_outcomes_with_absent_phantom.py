"""The absent phantom: with the check on, every test ends as it does without it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.sessions import module, run_session

SUITE = """
import ctypes.util

def probe(name="libcuda.so.1"):
    try:
        driver = ctypes.CDLL(name)
    except OSError:
        return 0
    number = ctypes.c_int(0)
    if driver.cuInit(0) != 0:
        return 0
    driver.cuDeviceGetCount(ctypes.byref(number))
    return number.value

def nvml():
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return 0
    number = ctypes.c_uint(0)
    if library.nvmlInit_v2() != 0:
        return 0
    library.nvmlDeviceGetCount_v2(ctypes.byref(number))
    return number.value

NUMBER = probe()
needs_gpu = pytest.mark.skipif(not NUMBER, reason="needs a GPU")

@needs_gpu
def test_on_a_gpu():
    assert NUMBER > 0

def test_cpu_only():
    if NUMBER:
        pytest.skip("has a GPU")

@pytest.mark.parametrize("device", range(NUMBER))
def test_each_device(device):
    pass

def test_probe():
    assert probe() == nvml()

def test_spawned_probe():
    script = "import ctypes\\ntry: print(ctypes.CDLL('libcuda.so.1').cuInit(0) == 0)\\n"
    script += "except OSError: print(False)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{NUMBER > 0}\\n", "")

@pytest.mark.xfail(not NUMBER, reason="no GPU", strict=True)
def test_expected_to_fail():
    assert probe()

def test_fails():
    assert probe() == -1

def test_library_of_another_name():
    with pytest.raises(OSError):
        ctypes.CDLL("libcuda.so.1.not")
"""
TORCH = """
torch = pytest.importorskip("torch")
CUDA = torch.cuda.is_available()

@pytest.mark.skipif(not CUDA, reason="needs CUDA")
def test_on_a_gpu():
    torch.ones(1, device="cuda")

@pytest.mark.skipif(CUDA, reason="for machines without")
def test_errors_of_a_machine_without():
    for work in (
        lambda: torch.ones(1, device="cuda"),
        lambda: torch.ones(1).cuda(),
        torch.cuda.current_device,
        torch.cuda.synchronize,
        torch.cuda.get_device_capability,
        torch.cuda.init,
    ):
        with pytest.raises((RuntimeError, AssertionError)) as caught:
            work()
        print(type(caught.value), caught.value)
    assert 0, "to show what was printed"

@pytest.mark.parametrize("device", ["cpu"] + ["cuda"] * CUDA)
def test_device(device):
    assert torch.ones(1, device=device).sum() == 1

def test_questions():
    assert torch.cuda.device_count() == 0 or CUDA
    assert not torch.cuda.is_initialized() or CUDA
    torch.manual_seed(1)
    torch.cuda.manual_seed_all(1)
    with torch.random.fork_rng():
        torch.rand(1)

def test_pin_memory():
    torch.ones(1).pin_memory()

def test_autocast():
    with torch.autocast("cuda" if CUDA else "cpu"):
        pass

@pytest.mark.xfail(raises=AssertionError)
def test_expected():
    torch.zeros(1, device="cuda:7")
"""


NO_DRIVER = re.compile(r"Found no NVIDIA driver on your system\.[^<\n]*?/index\.aspx")
NO_GPU = "No CUDA GPUs are available"
"""What a build of torch with CUDA says where there is no driver, and of one that has no GPU: the
phantom is a driver."""


def _outcomes(path: Path) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Every test with its results and what it printed, as JUnit XML has them.

    Less the text of a traceback: where torch itself raises, it shows a frame of the witness. Where
    torch says that there is no driver, that there is no GPU.
    """
    cases = ElementTree.parse(path).getroot().iter("testcase")
    kinds = ("failure", "error", "skipped", "system-out", "system-err")
    return [
        (
            f"{case.get('classname')}::{case.get('name')}",
            [
                (e.tag, _told(e.get("message")), _told(e.text if e.tag != "failure" else ""))
                for e in case
                if e.tag in kinds
            ],
        )
        for case in cases
    ]


def _told(text: str | None) -> str:
    return NO_DRIVER.sub(NO_GPU, text or "")


@pytest.mark.parametrize("suite", ["driver", "torch"])
def test_outcomes_and_messages_are_the_same_with_and_without_the_check(
    suite: str, pytester: pytest.Pytester
) -> None:
    if suite == "torch" and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    pytester.makepyfile(module(SUITE if suite == "driver" else TORCH))
    results: list[list[tuple[str, list[tuple[str, str, str]]]]] = []
    for options in ((), ("--cuda-fork-check",), ("--cuda-fork-check=poison",)):
        xml = Path(f"results-{len(results)}.xml")
        run_session(pytester, *options, f"--junitxml={xml}", "-o", "junit_logging=all")
        results.append(_outcomes(xml))
    assert len(results[0]) >= 7
    assert results[1] == results[0]
    assert results[2] == results[0]

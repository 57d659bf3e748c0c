"""Entry points of the phantom get NULL where they would write, and answer an error.

Which there are, and what they take, is read from the sources: a new one is called, too.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from pytest_cudafork.observe.driver import native_libs
from tests.support.native import Scripts, needs_libraries

pytestmark = needs_libraries


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    """Scripts in a folder of their own."""
    return Scripts(tmp_path)


SOURCES = Path(native_libs.__file__).with_name("native")
_FUNCTION = re.compile(r"^EXPORT int ((?:cu|nvml)[A-Z]\w+)\(([^)]*)\)", re.MULTILINE)
_HANDLES = ("handle", "context")
_MOST_BYTES = 64


def functions(source: str) -> dict[str, list[str]]:
    """Return the entry points of a source file, with the declaration of each argument."""
    text = (SOURCES / source).read_text(encoding="utf-8")
    found = _FUNCTION.findall(text)
    return {name: [one.strip() for one in given.split(",")] for name, given in found}


def kinds(declaration: str) -> tuple[str, ...]:
    """Return what is passed for an argument: each of these words, in turn."""
    name = declaration.split()[-1].lstrip("*")
    if declaration == "void":
        return ()
    if name in _HANDLES and "**" not in declaration:
        return ("NULL", "HANDLE")
    if "*" in declaration:
        return ("NULL", "BUFFER")
    return (str(_MOST_BYTES),) if name == "size" else ("0",)


def calls(found: dict[str, list[str]]) -> list[tuple[str, list[str]]]:
    """Return all calls in which at least one pointer is NULL."""
    made = []
    for name, arguments in found.items():
        words = [kinds(argument) for argument in arguments]
        for chosen in itertools.product(*(word for word in words if word)):
            if "NULL" in chosen:
                made.append((name, list(chosen)))
    return made


DRIVER = functions("phantom_answers.c") | functions("phantom_driver.c")
NVML = functions("phantom_nvml.c")
SCRIPT = """
    phantom.install("sm_90x2")
    library, calls = ctypes.CDLL({library!r}), {calls!r}
    handle, buffer = ctypes.c_void_p(), ctypes.create_string_buffer(4096)
    {begin}
    values = {{"NULL": ctypes.c_void_p(), "HANDLE": handle, "BUFFER": buffer}}
    for name, words in calls:
        print(name, *words, end=" -> ", flush=True)
        given = [values[word] if word in values else ctypes.c_int(int(word)) for word in words]
        print(getattr(library, name)(*given), flush=True)
"""
BEGIN_DRIVER = "library.cuInit(0); library.cuDevicePrimaryCtxRetain(ctypes.byref(handle), 0)"
BEGIN_NVML = "library.nvmlInit_v2(); library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))"
MAY_BE_NULL = (
    "cuCtxGetStreamPriorityRange",
    "cuCtxPopCurrent_v2",
    "cuCtxSetCurrent",
    "cuCtxGetApiVersion",
    "cuStreamIsCapturing NULL BUFFER",
)
"""Functions for which NULL stands for something, or for what is not wanted."""


@pytest.mark.parametrize("library", ["libcuda.so.1", "libnvidia-ml.so.1"])
def test_no_entry_point_writes_to_null(library: str, scripts: Scripts) -> None:
    found, begin = (DRIVER, BEGIN_DRIVER) if "cuda" in library else (NVML, BEGIN_NVML)
    made = calls(found)
    assert len({name for name, _ in made}) > 15
    done = scripts.run(SCRIPT.format(library=library, calls=made, begin=begin))
    assert done.status == 0, (done.out.splitlines()[-1], done.err)
    told = dict(line.split(" -> ") for line in done.out.splitlines())
    assert len(told) == len(made)
    taken = [call for call, answer in told.items() if answer == "0"]
    assert [call for call in taken if not call.startswith(MAY_BE_NULL)] == []


def test_the_older_forms_of_the_pci_info_stay_in_the_older_struct(scripts: Scripts) -> None:
    """nvmlPciInfo_t grew: 32 bytes, 36 (and 16 more that are reserved), 68."""
    done = scripts.run(
        """
        phantom.install("sm_90x2")
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        handle = ctypes.c_void_p()
        assert nvml.nvmlInit_v2() == 0
        assert nvml.nvmlDeviceGetHandleByIndex_v2(1, ctypes.byref(handle)) == 0
        for name, size in (("", 32), ("_v2", 36), ("_v3", 68)):
            data = ctypes.create_string_buffer(b"\\xee" * 128, 128)
            assert getattr(nvml, "nvmlDeviceGetPciInfo" + name)(handle, data) == 0
            assert data.raw[:12] == b"0000:02:00.0", data.raw
            assert int.from_bytes(data.raw[20:24], "little") == 2
            assert data.raw[size:] == b"\\xee" * (128 - size), (name, data.raw)
            assert b"\\xee" not in data.raw[:size]
        assert data.raw[36:53].rstrip(b"\\0") == b"00000000:02:00.0"
        """
    )
    assert done.status == 0, done.err

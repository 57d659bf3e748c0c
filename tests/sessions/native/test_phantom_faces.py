"""The grammar of a face: Python and C read it alike."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_cudafork.gpus.inventory import phantom_machine, visible_gpus
from pytest_cudafork.settings.devices import MOST_DEVICES, Face, parse_face
from tests.support.native import ROOT, Scripts, compile_c, needs_libraries

NATIVE = ROOT / "pytest_cudafork/observe/driver/native"


@given(major=st.integers(1, 99), minor=st.integers(0, 9), devices=st.integers(1, MOST_DEVICES))
def test_every_capability_and_number_is_read_back(major: int, minor: int, devices: int) -> None:
    expected = Face((major, minor), devices)
    assert parse_face(f"sm_{major}{minor}x{devices}") == expected
    if devices == 1:
        assert parse_face(f"sm_{major}{minor}") == expected


def test_absent_has_no_device() -> None:
    assert parse_face("absent") == Face(None, 0)


WRONG = (
    *("", "present", "sm_", "sm_9", "sm_90a", "sm_90x", "sm_90x0", "sm_90x17", "sm_90x02", "90"),
    *(
        "sm_090",
        "sm_1000",
        "SM_90",
        "sm_90 ",
        "sm_90x2x2",
        "sm_\N{FULLWIDTH DIGIT NINE}0",
        "sm_90\n",
    ),
)


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_face_is_named_with_the_rule(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a face.*from 1 to 16.*'sm_90'") as error:
        parse_face(text)
    assert repr(text) in str(error.value)


@pytest.fixture(scope="module")
def c_parser(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Only the parser, built anew: the phantom must not be mapped in the test process."""
    path = tmp_path_factory.mktemp("face") / "face.so"
    compile_c(
        f"""
        #include "{NATIVE}/phantom_face.c"
        int parse(const char *text, int *devices)
        {{
            struct face face;
            int answer = face_parse(text, &face);
            *devices = face.devices;
            return answer ? -1 : face.capability;
        }}
        int show(const char *text, const char *visible, int *numbers)
        {{
            struct face face;
            face_parse(text, &face);
            face_show(&face, visible);
            for (int device = 0; device < face.devices; device++)
                numbers[device] = face.number[device];
            return face.devices;
        }}
        """,
        path,
        "-shared",
        "-fPIC",
        f"-I{NATIVE}",
    )
    return ctypes.CDLL(str(path))


_SPELLINGS = st.one_of(
    st.from_regex(r"sm_[0-9]{0,4}(x[0-9]{0,3})?", fullmatch=True),
    st.text("absentsm_x0129 ", max_size=12),
    st.sampled_from(WRONG),
)


@given(text=_SPELLINGS)
def test_c_and_python_agree(c_parser: ctypes.CDLL, text: str) -> None:
    devices = ctypes.c_int(-1)
    answer = c_parser.parse(text.encode(), ctypes.byref(devices))
    try:
        face = parse_face(text)
    except ValueError:
        assert (answer, devices.value) == (-1, 0)
    else:
        major, minor = face.capability or (0, 0)
        assert (answer, devices.value) == (major * 10 + minor, face.devices)


_UUIDS = [gpu.uuid for gpu in phantom_machine("sm_90x12").gpus]
_NAMES = st.one_of(
    st.integers(-2, 14).map(str),
    st.sampled_from(["", "none", "00", "+1", "0x1", "1.", "GPU-", "MIG-1", "9" * 30, "\u00b2"]),
    st.sampled_from(_UUIDS).flatmap(
        lambda uuid: st.sampled_from([uuid, uuid.upper(), uuid.lower(), uuid[:20], f"{uuid}0"])
    ),
)
_MASKS = st.lists(st.tuples(st.sampled_from(["", " ", "\t"]), _NAMES), max_size=18).map(
    lambda names: ",".join(f"{space}{name}{space}" for space, name in names)
)


@given(visible=_MASKS)
@example("0,1,10,11")
@example("1,1")
@example(" 3 ,GPU-63756461-666F-726B-0000-000000000000")
def test_c_and_python_show_the_same_devices(c_parser: ctypes.CDLL, visible: str) -> None:
    numbers = (ctypes.c_int * MOST_DEVICES)()
    count = c_parser.show(b"sm_90x12", visible.encode(), numbers)
    expected = visible_gpus(visible, phantom_machine("sm_90x12").gpus)
    assert numbers[:count] == [gpu.number for gpu in expected]


@needs_libraries
def test_the_driver_shows_what_cuda_visible_devices_names_when_it_is_initialized(
    tmp_path: Path,
) -> None:
    done = Scripts(tmp_path).run(
        """
        phantom.install("sm_90x4")
        cuda, n, by = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.byref
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        assert cuda.cuInit(0) == 100, "no device, as the real driver says"
        os.environ["CUDA_VISIBLE_DEVICES"] = "3,1,7"
        assert cuda.cuInit(0) == 0
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        assert cuda.cuInit(0) == 0
        assert cuda.cuDeviceGetCount(by(n)) == 0 and n.value == 2
        assert cuda.cuDeviceGet(by(n), 1) == 0 and cuda.cuDeviceGet(by(n), 2) == 101
        text, uuid = ctypes.create_string_buffer(64), (ctypes.c_ubyte * 16)()
        assert cuda.cuDeviceGetUuid_v2(uuid, 0) == 0 and uuid[15] == 3
        assert cuda.cuDeviceGetPCIBusId(text, 64, 1) == 0 and text.value == b"0000:02:00.0"
        assert cuda.cuDeviceGetAttribute(by(n), 33, 0) == 0 and n.value == 4
        assert cuda.cuDeviceGetByPCIBusId(by(n), b"0000:02:00.0") == 0 and n.value == 1
        assert cuda.cuDeviceGetByPCIBusId(by(n), b"0000:01:00.0") == 101
        """
    )
    assert done.status == 0, done.err


@needs_libraries
def test_set_face_refuses_what_is_no_face_and_keeps_the_old_one(tmp_path: Path) -> None:
    done = Scripts(tmp_path).run(
        """
        native = phantom.install("sm_90").native
        native.set_face("sm_80x3")
        for text in ("nonsense", "sm_90x17"):
            try:
                native.set_face(text)
            except ValueError as error:
                print(error)
        assert native.face == "sm_80x3"
        native.set_face(None)
        assert native.face == "sm_90"
        """
    )
    assert done.status == 0, done.err
    assert done.out.count("is not a face") == 2


@needs_libraries
@pytest.mark.parametrize("face", ["sm_70", "sm_75", "sm_80", "sm_89", "sm_90", "sm_103", "sm_120"])
def test_each_model_has_plausible_figures(tmp_path: Path, face: str) -> None:
    done = Scripts(tmp_path).run(
        """
        phantom.install(sys.argv[1])
        cuda, n = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
        cuda.cuInit(0)
        figures = {}
        for attribute in range(1, 150):
            assert cuda.cuDeviceGetAttribute(ctypes.byref(n), attribute, 0) == 0
            figures[attribute] = n.value
        assert cuda.cuDeviceGetAttribute(ctypes.byref(n), 0, 0) == 1
        assert f"sm_{figures[75]}{figures[76]}" == sys.argv[1]
        assert figures[10] == 32 and figures[1] == 1024
        assert 16 <= figures[16] <= 200, "multiprocessors"
        assert figures[8] <= figures[97] <= figures[81] <= 256 * 1024, "shared memory"
        assert figures[39] in (1024, 1536, 2048)
        assert figures[120] == int(figures[75] >= 9), "clusters came with Hopper"
        """,
        face,
    )
    assert done.status == 0, done.err


def test_importing_phantom_and_injection_loads_no_ctypes() -> None:
    code = (
        "import sys; import pytest_cudafork.observe.driver.phantom;"
        "import pytest_cudafork.observe.driver.injection;"
        "print('ctypes' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout == "False\n"

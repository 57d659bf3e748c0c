"""The options: every source, their precedence, wrong values, paths beside flags."""

from __future__ import annotations

import sys

import pytest

from pytest_cudafork.settings.options import (
    OPTIONS,
)
from tests.support.sessions import assert_no_crash, records, run_session


def test_an_ini_list_has_one_module_a_line(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ncuda_fork_check = poison\ncuda_fork_allow =\n  one.two\n  three")
    pytester.makepyfile(
        """
        from pytest_cudafork.check.session import SESSION
        def test_a(request):
            assert request.config.stash[SESSION].settings.allow == ("one.two", "three")
        """
    )
    run_session(pytester).assert_outcomes(passed=1)


WRONG = {
    "--cuda-fork-imports=a-b": "--cuda-fork-imports: 'a-b' is not a module name",
    "--cuda-fork-imports-strict=maybe": "--cuda-fork-imports-strict: 'maybe' is neither yes nor no",
    "--cuda-fork-imports-update": "--cuda-fork-imports-update: there is no file to write: name it",
    "--cuda-fork-imports-graph=g.png": "'g.png' is not a picture: name a file that ends in .html",
    "--cuda-fork-imports-graph=/no/g.dot": "there is no folder '/no'",
    "--cuda-fork-check=forks": "--cuda-fork-check: 'forks' is not a level: use off, poison, fork,",
    "--cuda-fork-check=": "--cuda-fork-check: '' is not a level",
    "--cuda-fork-check touch": "--cuda-fork-check touch: a value follows after '=': write --cuda-",
    "--cuda-fork-imports-without=lib": "-without: no package is audited: name it with --cuda-fork-",
    "--cuda-fork-ledger=kept.jsonl": "nothing is checked, so kept.jsonl is not written: add --cuda",
    "--cuda-fork-device=": "--cuda-fork-device: '' is not a device",
    "--cuda-fork-device=gpu": "--cuda-fork-device: 'gpu' is not a device: use auto, real, phantom,",
    "--cuda-fork-device=phantom:": "--cuda-fork-device: '' is not a face of the phantom driver",
    "--cuda-fork-device=phantom:sm_90x99": "'sm_90x99' is not a face of the phantom driver",
    "--cuda-fork-device=real:sm_90": "only the phantom takes a GPU, as in phantom:sm_90",
    "--cuda-fork-isolate-timeout=0": "--cuda-fork-isolate-timeout: '0' is not a time limit: use",
    "--cuda-fork-isolate-timeout=soon": "'soon' is not a time limit: use a number of seconds above",
    "--cuda-fork-pack=": "--cuda-fork-pack: it needs the name of a file",
    "--cuda-fork-profile=/no/folder/p.json": "--cuda-fork-profile: there is no folder '/no/folder'",
    "--cuda-fork-settle=much": "--cuda-fork-settle: 'much' is not a number of GiB, as in 1 or 0.5",
    "--cuda-fork-isolate-scope=file": "'file' is not a scope of isolation: use test, class, module",
    "--cuda-fork-health=maybe": "'maybe' is not a way to look after the GPU: use fail, recover",
    "--cuda-fork-allow=a-b": "--cuda-fork-allow: 'a-b' is not a module name",
}


@pytest.mark.parametrize("arg", WRONG)
def test_a_wrong_value_is_one_clear_line(arg: str, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_a(): pass")
    result = run_session(pytester, *arg.split())
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert_no_crash(result)
    told = [line for line in result.stderr.lines if line.strip()]
    # pytest 7.4 warns of its own old hooks when any plugin raises so early.
    assert len(told) == 1 or "PluggyTeardownRaisedWarning" in told[0], told
    assert told[-1].startswith("ERROR: ")
    assert WRONG[arg] in told[-1]


def test_a_wrong_value_names_the_environment_or_the_ini_file_as_its_source(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile("def test_a(): pass")
    result = run_session(pytester, env={"PYTEST_CUDA_FORK_CHECK": "yes"})
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: PYTEST_CUDA_FORK_CHECK: 'yes' is not a level" in result.stderr.str()
    pytester.makeini("[pytest]\ncuda_fork_device = gpu")
    result = run_session(pytester)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: ini option cuda_fork_device: 'gpu' is not a device" in result.stderr.str()
    assert_no_crash(result)


def test_a_variable_with_a_slip_in_its_name_is_warned_of_once(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        pytest_plugins = ["pytester"]

        @pytest.mark.cuda_isolated(method="spawn")
        def test_isolated(): pass

        def test_session(pytester):
            pytester.makepyfile("def test_inner(): pass")
            pytester.runpytest_inprocess().assert_outcomes(passed=1)
        """
    )
    slip = {"PYTEST_CUDA_FORK_CHEK": "fork", "PYTEST_CURRENT_TEST": ""}
    result = run_session(pytester, env=slip)
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines(["*CudaForkWarning: * PYTEST_CUDA_FORK_CHEK: *_CHECK[?]"])
    result = run_session(pytester, "-Werror", env=slip)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert_no_crash(result)
    result.stderr.fnmatch_lines(["ERROR: nothing reads the variable PYTEST_CUDA_FORK_CHEK: *"])


def test_the_flag_alone_does_not_swallow_the_path_after_it(pytester: pytest.Pytester) -> None:
    folder = pytester.mkdir("suite")
    (folder / "test_in.py").write_text("def test_in(): pass")
    pytester.makepyfile(test_out="def test_out(): pass")
    result = run_session(pytester, "-v", "--cuda-fork-check", "suite")
    result.stdout.fnmatch_lines(["cuda-fork: level fork,*", "suite/test_in.py::test_in PASSED*"])
    result.stdout.no_fnmatch_line("*test_out*")


def test_addopts_may_hold_the_options_bare_or_not(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_a(): pass")
    pytester.makeini("[pytest]\naddopts = --cuda-fork-device=none --cuda-fork-check -v")
    result = run_session(pytester)
    result.stdout.fnmatch_lines(["cuda-fork: level fork, device none,*", "*::test_a PASSED*"])
    # The command line comes after addopts, so it wins.
    result = run_session(pytester, "--cuda-fork-check=poison")
    result.stdout.fnmatch_lines(["cuda-fork: level poison, device none,*"])


def test_off_on_the_command_line_beats_the_ini_file(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ncuda_fork_check = touch")
    pytester.makepyfile(
        """
        import os
        def test_a():
            assert not [name for name in os.environ if "CUDAFORK" in name]
        """
    )
    result = run_session(pytester, "--cuda-fork-check=off")
    result.assert_outcomes(passed=1)
    assert "cuda-fork" not in result.stdout.str()


@pytest.mark.parametrize("where", ["missing/ledger.jsonl", "."], ids=["no such folder", "a folder"])
def test_a_ledger_that_cannot_be_written_is_a_usage_error(
    where: str, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile("def test_a(): pass")
    result = run_session(pytester, "--cuda-fork-check", f"--cuda-fork-ledger={where}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert_no_crash(result)
    result.stderr.fnmatch_lines(["ERROR: the ledger cannot be written: *--cuda-fork-ledger*"])


def test_no_folder_for_temporary_files_is_a_usage_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_a(): pass")
    # With capture, pytest itself needs a temporary file and gives up before anybody is asked.
    script = (
        "import sys, tempfile, pytest\n"
        "tempfile.tempdir = '/proc/nowhere'\n"
        "sys.exit(pytest.main(['-p', 'cudafork', '--cuda-fork-check', '-s']))\n"
    )
    result = pytester.run(sys.executable, pytester.makepyfile(start=script))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert_no_crash(result)
    result.stderr.fnmatch_lines(["ERROR: the ledger cannot be written: *TMPDIR*"])


def test_the_ledger_is_kept_where_it_was_asked_for_and_begins_anew(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import ctypes
        def test_a():
            ctypes.CDLL("libcuda.so.1").cuInit(0)
        """
    )
    ledger = pytester.path / "kept.jsonl"
    for _ in range(2):
        result = run_session(pytester, "--cuda-fork-check", "--cuda-fork-ledger=kept.jsonl")
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines([f"ledger: {ledger}"])
        assert len(records(ledger, "touch")) == 1


def test_a_file_that_is_no_ledger_is_a_usage_error_and_keeps_what_it_holds(
    pytester: pytest.Pytester,
) -> None:
    source = pytester.makepyfile("def test_a(): pass")
    text = source.read_text()
    result = run_session(pytester, "--cuda-fork-check", f"--cuda-fork-ledger={source.name}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: the ledger cannot be written: *is left alone; name*"])
    assert source.read_text() == text


def test_the_real_device_without_a_driver_is_a_usage_error(pytester: pytest.Pytester) -> None:
    from pytest_cudafork.settings.real_driver import has_real_driver

    if has_real_driver():
        pytest.skip("this machine has a driver")
    pytester.makepyfile("def test_a(): pass")
    result = run_session(pytester, "--cuda-fork-check", "--cuda-fork-device=real")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert_no_crash(result)
    result.stderr.fnmatch_lines(
        ["ERROR: --cuda-fork-device=real: no NVIDIA driver can be used here (*use auto or phantom"]
    )


DEVICE_TEST = """
import ctypes
import pytest

def count(name="libcuda.so.1"):
    number = ctypes.c_int(-1)
    driver = ctypes.CDLL(name)
    if driver.cuInit(0) == 0:
        assert driver.cuDeviceGetCount(ctypes.byref(number)) == 0
    return number.value

def test_driver():
    try:
        found = count()
    except OSError:
        found = None
    assert found == EXPECTED

def test_torch():
    torch = pytest.importorskip("torch")
    assert torch.cuda.is_available() == ((EXPECTED or 0) > 0)
    assert torch.cuda.device_count() == max(EXPECTED or 0, 0)
    if EXPECTED == 2:
        assert torch.cuda.get_device_capability(1) == (9, 0)
"""


@pytest.mark.parametrize(
    ("device", "expected"), [("phantom:sm_90x2", 2), ("phantom", -1), ("none", None)]
)
def test_the_device_is_what_driver_and_torch_see(
    device: str, expected: int | None, pytester: pytest.Pytester
) -> None:
    from pytest_cudafork.settings.real_driver import has_real_driver

    if has_real_driver() and device == "none":
        pytest.skip("this machine has a driver")
    pytester.makepyfile(DEVICE_TEST.replace("EXPECTED", repr(expected)))
    result = run_session(pytester, "--cuda-fork-check", f"--cuda-fork-device={device}")
    assert result.ret == 0, result.stdout.str()
    assert result.parseoutcomes()["passed"] + result.parseoutcomes().get("skipped", 0) == 2


def test_with_no_device_the_header_and_the_summary_say_what_is_not_seen(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile("def test_a(): pass")
    result = run_session(pytester, "--cuda-fork-check", "--cuda-fork-device=none")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "cuda-fork: level fork, device none, witness none,*",
            "cuda-fork: not observable: no witness is installed*",
            "not observable: no witness is installed*",
        ]
    )
    assert "no touch of CUDA was seen" not in result.stdout.str()


@pytest.mark.parametrize("ini", ["pytest.ini", "setup.py"])
@pytest.mark.parametrize("flag", [one.flag for one in OPTIONS if one.flag_value])
def test_a_flag_without_a_value_imports_no_conftest_from_above_the_rootdir(
    flag: str, ini: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeconftest("import pathlib; pathlib.Path(__file__).with_name('seen').touch()")
    root = pytester.mkdir("root")
    (root / ini).write_text("[pytest]\n" if ini == "pytest.ini" else "")
    (root / "conftest.py").write_text("import pathlib; pathlib.Path('own').touch()")
    (root / "test_it.py").write_text("def test_a(): pass")
    monkeypatch.chdir(root)
    for args in ([], [flag]):
        (root / "own").unlink(missing_ok=True)
        result = run_session(pytester, *args)
        assert (root / "own").exists() or result.ret == pytest.ExitCode.USAGE_ERROR
        assert not (pytester.path / "seen").exists(), args


def test_a_conftest_from_above_the_rootdir_is_imported_beside_a_flag_where_it_was_asked_for(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeconftest("import pathlib; pathlib.Path(__file__).with_name('seen').touch()")
    root = pytester.mkdir("root")
    (root / "pytest.ini").write_text("[pytest]\n")
    (root / "test_it.py").write_text("def test_a(): pass")
    monkeypatch.chdir(root)
    run_session(pytester, "--cuda-fork-check", f"--confcutdir={pytester.path}")
    assert (pytester.path / "seen").exists()


def test_help_tells_every_option_with_its_environment_variable(pytester: pytest.Pytester) -> None:
    result = run_session(pytester, "--help")
    text = result.stdout.str()
    for option in OPTIONS:
        assert option.flag in text
        assert option.name in text
        assert option.env in text


NATIVE = """
[tool.pytest]
cuda_fork_check = {value}
"""


@pytest.mark.skipif(
    int(pytest.__version__.split(".")[0]) < 9, reason="[tool.pytest] came with pytest 9"
)
def test_the_native_table_of_pytest_9_is_read_and_a_wrong_type_is_one_clear_line(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile("def test_a(): pass")
    pytester.makepyprojecttoml(NATIVE.format(value='"fork"\ncuda_fork_allow = ["a.b", "c"]'))
    result = run_session(pytester, "-v", env={"PYTEST_CUDA_FORK_DEVICE": "none"})
    result.assert_outcomes(passed=1)
    shown = [line for line in result.outlines if line.startswith("cuda-fork-")]
    assert shown == [
        "cuda-fork-check: fork, from pyproject.toml",
        "cuda-fork-device: none, from the environment (PYTEST_CUDA_FORK_DEVICE)",
        "cuda-fork-allow: a.b,c, from pyproject.toml",
    ]
    pytester.makepyprojecttoml(NATIVE.format(value="true"))
    result = run_session(pytester)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert_no_crash(result)
    assert "'cuda_fork_check' expects a string, got bool: True" in result.stderr.str()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("cuda_fork_gpus = [0]", "cuda_fork_gpus: [0] is a list, and this option takes one text"),
        ("cuda_fork_allow = [1]", "cuda_fork_allow: '1' is not a module name"),
    ],
)
def test_a_list_in_pyproject_that_is_none_of_texts_is_one_clear_line(
    line: str, message: str, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile("def test_a(): pass")
    pytester.makepyprojecttoml(f"[tool.pytest.ini_options]\n{line}\n")
    result = run_session(pytester)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert_no_crash(result)
    assert f"ini option {message}" in result.stderr.str()


def test_in_a_container_without_gpus_on_a_machine_with_some_the_phantom_stands_in(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        early="""
        from pytest_cudafork.settings import real_driver
        real_driver.VERSION_FILE = __file__
        real_driver.DEVICE_SIGNS = ("/no/device",)
        """,
        test_it="""
        import ctypes, os

        def test_fork():
            ctypes.CDLL("libcuda.so.1").cuInit(0)
            os.fork()
        """,
    )
    result = run_session(pytester, "--cuda-fork-check", "-p", "early")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "cuda-fork: level fork, device phantom (no GPU),*",
            "cuda-fork: the phantom stands in for the driver: *early.py is there, but no "
            "libcuda.so.1 is where programs look for it",
            "*fork refused at test_it.py:5: CUDA was initialized at test_it.py:4*",
        ]
    )

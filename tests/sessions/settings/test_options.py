"""The options: every source, their precedence, wrong values, paths beside flags."""

from __future__ import annotations

import argparse
import sys
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cudafork.imports.values.settings import AuditSettings
from pytest_cudafork.settings.gpu_requests import GpuChoice
from pytest_cudafork.settings.import_options import (
    NO,
    YES,
    parse_flag,
    parse_jobs,
    parse_libraries,
    parse_patterns,
    parse_seconds,
    parse_size,
)
from pytest_cudafork.settings.import_settings import ImportSettings
from pytest_cudafork.settings.option import parse_modules
from pytest_cudafork.settings.options import (
    OPTIONS,
    Device,
    DeviceKind,
    Level,
    Settings,
    parse_device,
    parse_level,
    read_settings,
    spell_out_flags,
)
from tests.support.helpers import assert_no_crash, records, run_session

LOW, MIDDLE, HIGH = 0, 1, 2
# Three values of each option, and the settings that they become.
VALUES: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "cuda_fork_check": (
        ("poison", {"level": Level.POISON}),
        ("fork", {"level": Level.FORK}),
        ("touch", {"level": Level.TOUCH}),
    ),
    "cuda_fork_device": (
        ("none", {"device": Device(DeviceKind.NONE)}),
        ("phantom", {"device": Device(DeviceKind.PHANTOM)}),
        ("phantom:sm_90x2", {"device": Device(DeviceKind.PHANTOM, "sm_90x2")}),
    ),
    "cuda_fork_allow": (
        ("low", {"allow": ("low",)}),
        ("middle.sub", {"allow": ("middle.sub",)}),
        ("high, higher", {"allow": ("high", "higher")}),
    ),
    "cuda_fork_isolate": (
        ("spawn", {"isolate": "spawn"}),
        ("none", {"isolate": "none"}),
        ("auto", {"isolate": "auto"}),
    ),
    "cuda_fork_ledger": (
        ("/x/low", {"ledger": "/x/low"}),
        ("/x/middle", {"ledger": "/x/middle"}),
        ("/x/high", {"ledger": "/x/high"}),
    ),
    "cuda_fork_gpus": (
        ("auto", {"gpus": GpuChoice()}),
        ("2", {"gpus": GpuChoice(most=2, text="2")}),
        ("0,2", {"gpus": GpuChoice(names=("0", "2"), text="0,2")}),
    ),
    "cuda_fork_graphs": (
        ("auto", {"graphs": "auto"}),
        ("cuda", {"graphs": "cuda"}),
        ("software", {"graphs": "software"}),
    ),
}
# The same for the import audit, with the fields of its own settings.
IMPORT_VALUES: dict[str, tuple[tuple[str, Any], ...]] = {
    "packages": (("low", ("low",)), ("middle.sub", ("middle.sub",)), ("a, b", ("a", "b"))),
    "exclude": (("low", ("low",)), ("*.test_*", ("*.test_*",)), ("a.b,c.*", ("a.b", "c.*"))),
    "strict": (("yes", True), ("off", False), ("1", True)),
    "baseline": (("/x/low", "/x/low"), ("/x/middle", "/x/middle"), ("/x/high", "/x/high")),
    "without": (("low", ("low",)), ("a.b+c", ("a.b+c",)), ("d,e", ("d", "e"))),
    "graph": (("/low.dot", "/low.dot"), ("/m.html", "/m.html"), ("/high.dot", "/high.dot")),
    "timeout": (("1", 1.0), ("2.5", 2.5), ("300", 300.0)),
    "jobs": (("1", 1), ("2", 2), ("auto", 0)),
    "memory": (("4G", 4 << 30), ("512M", 512 << 20), ("1024", 1024)),
}
VALUES |= {
    f"cuda_fork_imports{'' if name == 'packages' else f'_{name}'}": tuple(
        (text, {"imports": ImportSettings(**{name: value})}) for text, value in values
    )
    for name, values in IMPORT_VALUES.items()
}


class Ini:
    """An ini file, as far as options are read from it."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values

    def getini(self, name: str) -> str | list[str]:
        text = self._values.get(name, "")
        lines = next(option.lines for option in OPTIONS if option.name == name)
        return text.split() if lines else text


def settings_from(
    monkeypatch: pytest.MonkeyPatch,
    *,
    ini: dict[str, str] | None = None,
    env: dict[str, str] | None = None,
    cli: dict[str, str] | None = None,
) -> Settings:
    for option in OPTIONS:
        monkeypatch.delenv(option.env, raising=False)
    for name, value in (env or {}).items():
        monkeypatch.setenv(f"PYTEST_{name.upper()}", value)
    namespace = argparse.Namespace(**{option.name: None for option in OPTIONS})
    vars(namespace).update(cli or {})
    return read_settings(cast(pytest.Config, Ini(ini or {})), namespace)


def test_the_table_of_values_covers_every_option() -> None:
    # to update is to need a file, too
    assert set(VALUES) | {"cuda_fork_imports_update"} == {option.name for option in OPTIONS}


@pytest.mark.parametrize("name", VALUES)
def test_command_line_beats_environment_beats_ini_beats_default(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    low, middle, high = VALUES[name]

    def read(count: int) -> Settings:
        return settings_from(
            monkeypatch,
            ini={name: low[0]} if count > LOW else None,
            env={name: middle[0]} if count > MIDDLE else None,
            cli={name: high[0]} if count > HIGH else None,
        )

    assert [read(count) for count in range(4)] == [
        Settings(),
        Settings(**low[1]),
        Settings(**middle[1]),
        Settings(**high[1]),
    ]


def test_an_update_needs_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"cuda_fork_imports_update": "yes"}
    with pytest.raises(pytest.UsageError, match="--cuda-fork-imports-baseline=FILE"):
        settings_from(monkeypatch, cli=names)
    read = settings_from(monkeypatch, cli=names, ini={"cuda_fork_imports_baseline": "/x/b.toml"})
    assert read.imports == ImportSettings(baseline="/x/b.toml", update=True)


def test_the_defaults_of_the_import_audit_are_those_of_its_processes() -> None:
    for name in set(ImportSettings._fields) & set(AuditSettings._fields) - {"jobs", "without"}:
        assert ImportSettings._field_defaults[name] == AuditSettings._field_defaults[name]


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


def test_an_empty_environment_variable_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_from(
        monkeypatch, ini={"cuda_fork_check": "poison"}, env={"cuda_fork_check": ""}
    )
    assert settings.level is Level.POISON


def test_empty_on_the_command_line_takes_back_a_list_or_a_file_of_the_ini_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {
        "cuda_fork_allow": "a",
        "cuda_fork_ledger": "/x/kept",
        "cuda_fork_imports": "pkg",
        "cuda_fork_imports_graph": "/x.dot",
    }
    settings = settings_from(monkeypatch, ini=names, cli=dict.fromkeys(names, ""))
    assert settings == Settings()


def test_a_bare_flag_is_spelled_out_and_the_path_after_it_left_alone() -> None:
    args = ["-q", "--cuda-fork-check", "tests", "--cuda-fork-device", "none"]
    assert spell_out_flags(args)
    assert args == ["-q", "--cuda-fork-check=fork", "tests", "--cuda-fork-device", "none"]


@pytest.mark.parametrize("args", [["-q", "tests"], ["--", "--cuda-fork-check"], []])
def test_what_is_no_bare_flag_is_left_alone(args: list[str]) -> None:
    before = list(args)
    assert not spell_out_flags(args)
    assert args == before


@settings(deadline=None)
@given(st.text())
def test_a_level_is_one_of_four_words_and_everything_else_is_a_value_error(text: str) -> None:
    words = {level.value for level in Level}
    if text in words:
        assert parse_level(text).value == text
    else:
        with pytest.raises(ValueError, match="poison, fork, touch"):
            parse_level(text)


@settings(deadline=None)
@given(st.one_of(st.text(), st.from_regex(r"\A(phantom|real|none|auto)(:[a-z0-9_]*)?\Z")))
def test_a_device_is_read_or_refused_with_a_value_error(text: str) -> None:
    kind, colon, face = text.partition(":")
    try:
        device = parse_device(text)
    except ValueError as error:
        words = str(error)
    else:
        assert device.kind.value == kind
        assert device.face == (face if colon else "absent")
        return
    assert repr(face) in words or repr(text) in words


@settings(deadline=None)
@given(st.lists(st.from_regex(r"\A[a-z_][a-z0-9_]*(\.[a-z_]+)?\Z").filter(lambda t: "\n" not in t)))
def test_modules_are_separated_by_commas(names: list[str]) -> None:
    assert parse_modules(" , ".join(names)) == tuple(names)


@settings(deadline=None)
@given(st.one_of(st.text(), st.from_regex(r"\A[0-9]{1,3}(\.[0-9])?[KMGT]?(i?B)?\Z")))
def test_a_size_is_a_number_with_a_unit_and_everything_else_is_a_value_error(text: str) -> None:
    try:
        size = parse_size(text)
    except ValueError as error:
        words = str(error)
    else:
        assert size >= 0
        assert parse_size(str(size)) == size
        return
    assert repr(text) in words


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "nan", "inf", "1e999"])
def test_seconds_are_a_number_above_0(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number of seconds above 0"):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "1.5", "\u00b2"])
def test_jobs_are_auto_or_a_number_above_0(text: str) -> None:
    with pytest.raises(ValueError, match="use auto, or a number above 0"):
        parse_jobs(text)


@settings(deadline=None)
@given(st.text())
def test_a_flag_is_yes_or_no_and_everything_else_is_a_value_error(text: str) -> None:
    if text.lower() in (*YES, *NO):
        assert parse_flag(text) is (text.lower() in YES)
    else:
        with pytest.raises(ValueError, match="is neither yes nor no"):
            parse_flag(text)


@pytest.mark.parametrize("text", ["a-b", "a b", "a+", "+", "a++b", "1"])
def test_a_library_to_hide_is_a_module_or_several_joined_by_a_plus(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a (module name|library)"):
        parse_libraries(text)


@pytest.mark.parametrize("text", ["a b", "a/b", "a:*"])
def test_a_pattern_that_can_match_no_module_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a pattern of module names"):
        parse_patterns(text)


WRONG = {
    "--cuda-fork-imports=a-b": "--cuda-fork-imports: 'a-b' is not a module name",
    "--cuda-fork-imports-strict=maybe": "--cuda-fork-imports-strict: 'maybe' is neither yes nor no",
    "--cuda-fork-imports-update": "--cuda-fork-imports-update: there is no file to write: name it",
    "--cuda-fork-imports-graph=g.png": "'g.png' is not a picture: name a file that ends in .html",
    "--cuda-fork-imports-graph=/no/g.dot": "there is no folder '/no'",
    "--cuda-fork-check=forks": "--cuda-fork-check: 'forks' is not a level: use off, poison, fork,",
    "--cuda-fork-check=": "--cuda-fork-check: '' is not a level",
    "--cuda-fork-device=": "--cuda-fork-device: '' is not a device",
    "--cuda-fork-device=gpu": "--cuda-fork-device: 'gpu' is not a device: use auto, real, phantom,",
    "--cuda-fork-device=phantom:": "--cuda-fork-device: '' is not a face of the phantom driver",
    "--cuda-fork-device=phantom:sm_90x99": "'sm_90x99' is not a face of the phantom driver",
    "--cuda-fork-device=real:sm_90": "only the phantom takes a GPU, as in phantom:sm_90",
    "--cuda-fork-allow=a-b": "--cuda-fork-allow: 'a-b' is not a module name",
}


@pytest.mark.parametrize("arg", WRONG)
def test_a_wrong_value_is_one_clear_line(arg: str, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_a(): pass")
    result = run_session(pytester, arg)
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
    ledger.write_text("something old\n")
    result = run_session(pytester, "--cuda-fork-check", "--cuda-fork-ledger=kept.jsonl")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"ledger: {ledger}"])
    text = ledger.read_text()
    assert "something old" not in text
    assert len(records(ledger, "touch")) == 1


def test_the_real_device_without_a_driver_is_a_usage_error(pytester: pytest.Pytester) -> None:
    from pytest_cudafork.check.session import has_real_driver

    if has_real_driver():
        pytest.skip("this machine has a driver")
    pytester.makepyfile("def test_a(): pass")
    result = run_session(pytester, "--cuda-fork-check", "--cuda-fork-device=real")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert_no_crash(result)
    result.stderr.fnmatch_lines(
        ["ERROR: --cuda-fork-device=real: this machine has no NVIDIA driver (*use auto or phantom"]
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
    from pytest_cudafork.check.session import has_real_driver

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


def test_help_tells_every_option_with_its_environment_variable(pytester: pytest.Pytester) -> None:
    result = run_session(pytester, "--help")
    text = result.stdout.str()
    for option in OPTIONS:
        assert option.flag in text
        assert option.name in text
        assert option.env in text

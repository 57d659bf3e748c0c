"""Optional libraries hidden on purpose: which of them makes the difference."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.imports import (
    TOUCH,
    Session,
    audit_here,
    command_line,
    run_audit,
    write_package,
)

LIBRARIES = {"fastlib": "", "slowlib": "", "needed": "", "fastlib_extra": ""}
PACKAGE = {
    "__init__": "",
    "clean": "",
    "uses_fast": f"""
        try:
            import fastlib
        except ImportError:
            fastlib = None
        if fastlib is not None:
            {TOUCH}
        """,
    "imports_it": "from opt import uses_fast",
    "asks": f"""
        import importlib.util
        if importlib.util.find_spec("fastlib") is None:
            {TOUCH}
        """,
    "falls_back": f"""
        try:
            import slowlib
        except ImportError:
            {TOUCH}
        """,
    "either": f"""
        try:
            import fastlib
        except ImportError:
            try:
                import slowlib
            except ImportError:
                {TOUCH}
        """,
    "needs": "import needed",
    "extra": "import fastlib_extra",
}


@pytest.fixture
def opt(pytester: pytest.Pytester) -> pytest.Pytester:
    for name, text in LIBRARIES.items():
        write_package(pytester.path, name, {"__init__": text, "inner": ""})
    write_package(pytester.path, "opt", PACKAGE)
    return pytester


def _verdicts(session: Session, library: str) -> dict[str, str]:
    return {
        record["module"].removeprefix("opt").removeprefix("."): record["verdict"]
        for record in session.records
        if record["without"] == library
    }


def test_every_module_is_audited_once_more_with_each_library_hidden(opt: pytest.Pytester) -> None:
    hidden = "fastlib,needed,fastlib+slowlib,no_such_lib"
    session = run_audit(
        opt, "--cuda-fork-imports=opt", f"--cuda-fork-imports-without={hidden}", "-v"
    )
    touching = {"uses_fast", "imports_it"}
    plain = {name.replace("__init__", ""): "clean" for name in PACKAGE}
    plain |= dict.fromkeys(touching, "touches")
    assert _verdicts(session, "") == plain
    clean = {**plain, **dict.fromkeys(touching, "clean"), "asks": "touches"}
    assert _verdicts(session, "fastlib") == clean
    assert _verdicts(session, "needed") == {**plain, "needs": "not importable"}
    both = {**clean, "falls_back": "touches", "either": "touches"}
    assert _verdicts(session, "fastlib+slowlib") == both
    assert _verdicts(session, "no_such_lib") == plain
    assert session.outcomes["opt::opt.needs[without needed]"] == "skipped"
    assert session.outcomes["opt::opt.either[without fastlib+slowlib]"] == "failed"
    text = session.text("opt::opt.either[without fastlib+slowlib]")
    assert text.startswith("opt.either, with fastlib and slowlib hidden: the import initializes")
    _check_summary(session)


def _check_summary(session: Session) -> None:
    section = session.section()
    assert section[:2] == [
        "opt/uses_fast.py:7 (module body): 2 modules",
        "  make `opt/imports_it.py:1` (opt.imports_it imports opt.uses_fast) lazy: frees 1 of 2",
    ]
    for line in (
        "without fastlib: 2 modules no longer touch CUDA (opt/uses_fast.py:7): fastlib makes the "
        "difference",
        "only without fastlib:",
        "  opt/asks.py:4 (module body): 1 module",
        "without needed: 1 module cannot be imported: opt.needs",
        "only without fastlib and slowlib:",
        "  opt/either.py:8 (module body): 1 module",
        "without no_such_lib: it is not installed here, so to hide it changes nothing",
        "opt: 9 modules: 7 clean, 2 initialize CUDA",
        "opt without fastlib and slowlib: 9 modules: 6 clean, 3 initialize CUDA",
    ):
        assert line in section, section


def test_they_are_selected_by_name(opt: pytest.Pytester) -> None:
    args = ("--cuda-fork-imports=opt", "--cuda-fork-imports-without=fastlib")
    one = run_audit(opt, *args, "opt::opt.asks[without fastlib]")
    assert one.outcomes == {"opt::opt.asks[without fastlib]": "failed"}
    both = run_audit(opt, *args, "opt::opt.uses_fast")
    assert both.outcomes == {
        "opt::opt.uses_fast": "failed",
        "opt::opt.uses_fast[without fastlib]": "passed",
    }
    assert run_audit(opt, *args, "-k", "without and asks").outcomes == one.outcomes


def test_a_baseline_knows_what_was_hidden(opt: pytest.Pytester) -> None:
    args = [
        "--cuda-fork-imports=opt",
        "--cuda-fork-imports-without=fastlib",
        "--cuda-fork-imports-baseline=accepted.toml",
    ]
    run_audit(opt, *args, "--cuda-fork-imports-update", "-k", "asks")
    text = (opt.path / "accepted.toml").read_text()
    assert '["opt without fastlib"]\n"opt.asks" = "opt/asks.py:4"' in text
    session = run_audit(opt, *args, "-k", "asks or uses_fast")
    assert session.outcomes == {
        "opt::opt.asks": "passed",
        "opt::opt.uses_fast": "failed",
        "opt::opt.asks[without fastlib]": "xfailed",
        "opt::opt.uses_fast[without fastlib]": "passed",
    }


def test_from_python_and_from_a_shell(opt: pytest.Pytester) -> None:
    records = audit_here("opt.asks", opt.path, without=["fastlib"], confirm=False)
    assert records["opt.asks"].without == "fastlib"
    assert records["opt.asks"].verdict.value == "touches"
    result = command_line(opt, "opt", "--without", "fastlib", "--no-confirm")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["*fastlib makes the difference", "opt without fastlib: 9 modules*"]
    )


def test_the_package_itself_may_be_hidden(tmp_path: Path) -> None:
    write_package(tmp_path, "own", {"__init__": "", "part": "import own.other", "other": ""})
    records = audit_here("own", tmp_path, without=["own.other"], confirm=False)
    found = {(record.module, record.without): record.verdict.value for record in records.values()}
    assert found[("own.part", "own.other")] == "not importable"
    assert found[("own", "own.other")] == "clean"

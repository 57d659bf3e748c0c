"""The import audit as tests: one for each module, selected and reported like any other."""

from __future__ import annotations

import shutil
import sys
import sysconfig
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.support.imports import (
    SHOP,
    SHOP_VERDICTS,
    TOUCH,
    XDIST,
    Session,
    needs_xdist,
    run_audit,
    write_package,
)
from tests.support.sessions import TIME_LIMIT

pytestmark = pytest.mark.fresh_children("frames of how a child is started are looked at")

NAMES = [f"shop::{name}" for name in SHOP_VERDICTS]


@pytest.fixture
def shop(pytester: pytest.Pytester) -> pytest.Pytester:
    write_package(pytester.path, "shop", SHOP)
    return pytester


def test_every_module_is_a_test_with_the_outcome_of_its_verdict(shop: pytest.Pytester) -> None:
    session = run_audit(shop, "--cuda-fork-imports=shop", "--junitxml=junit.xml", "-rA")
    assert session.verdicts == SHOP_VERDICTS
    assert session.outcomes == {
        f"shop::{name}": {"clean": "passed", "not importable": "skipped"}.get(verdict, "failed")
        for name, verdict in SHOP_VERDICTS.items()
    }
    assert [report["nodeid"] for report in session.reports if report["when"] == "setup"] == NAMES
    assert session.result.ret == pytest.ExitCode.TESTS_FAILED
    assert not any(name.partition(".")[0] == "shop" for name in session.imported)
    assert "audit of the imports of shop (10 modules), phantom (sm_90)" in session.out
    _check_text_of_a_touch(session)
    _check_other_texts(session)
    _check_junit(shop.path / "junit.xml")
    _check_summary(session)


def _check_text_of_a_touch(session: Session) -> None:
    text = session.text("shop::shop.models.big")
    lines = [line.strip() for line in text.splitlines()]
    assert lines[0] == "shop.models.big: the import initializes CUDA"
    assert "shop/flash.py:2: class body of Kernel, evaluated at import" in lines
    assert f"> {TOUCH}" in lines
    assert any(line.startswith("touched CUDA by cuInit") for line in lines)
    chain = lines[lines.index("imported through:") + 1 :][:2]
    assert chain == [
        "shop/models/big.py:1  from shop.layers import flash",
        "shop/layers.py:1  from shop import flash",
    ]
    assert "site-packages" not in text
    assert "pytest_cudafork" not in text
    assert "confirmed: a fresh interpreter" in session.text("shop::shop.flash")


def _check_other_texts(session: Session) -> None:
    assert "No module named 'no_such_library'" in session.text("shop::shop.broken")
    late = session.text("shop::shop.late")
    assert "then fails: ValueError: no such backend" in late
    assert "shop/late.py:1: module body" in late
    crash = session.text("shop::shop.hook")
    assert "shop.hook: the process exited with status 7 during the import" in crash


def _check_junit(path: Path) -> None:
    cases = {case.get("name"): case for case in ET.parse(path).iter("testcase")}
    assert set(cases) == set(SHOP_VERDICTS)
    failed = cases["shop.flash"].find("failure")
    assert failed is not None
    assert failed.get("message") == (
        "the import initializes CUDA at shop/flash.py:2: class body of Kernel, evaluated at import"
    )
    assert "ctypes.CDLL" in (failed.text or "")
    skipped = cases["shop.broken"].find("skipped")
    assert skipped is not None
    assert "no_such_library" in (skipped.get("message") or "")
    assert len(cases["shop.clean"]) == 0
    assert all(float(case.get("time", -1)) >= 0 for case in cases.values())


def _check_summary(session: Session) -> None:
    section = session.section()
    confirmed = section.pop(7)
    assert section == [
        "shop/flash.py:2 (class body): 3 modules",
        "  make `shop/layers.py:1` (shop.layers imports shop.flash) lazy: frees 2 of 3",
        "shop/late.py:1 (module body): 1 module",
        "  change the line itself: no import that can be made lazy frees a module",
        "crashed: shop.hook: the process exited with status 7 during the import",
        "not importable: shop.broken: ModuleNotFoundError: No module named 'no_such_library'",
        "nothing is known of it: with --cuda-fork-imports-strict (imports --strict) such modules "
        "fail",
        "shop: 10 modules: 4 clean, 3 initialize CUDA, 1 initialize CUDA, then fail to import, "
        "1 not importable, 1 crashed",
    ]
    assert confirmed.startswith("confirmed in a fresh interpreter: 2 culprit lines, ")
    assert confirmed.endswith("clean modules, 1 crash or time limit, 1 failing import")


def test_collect_only_lists_the_tests_and_imports_nothing(shop: pytest.Pytester) -> None:
    (shop.path / "shop" / "__init__.py").write_text("open('ran', 'w').close()\n")
    session = run_audit(shop, "--cuda-fork-imports=shop", "--collect-only", "-q")
    assert session.result.ret == 0
    assert [line for line in session.out.splitlines() if "::" in line] == NAMES
    assert not (shop.path / "ran").exists()


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["-k", "models"], ["shop.models", "shop.models.big", "shop.models.small"]),
        (["-k", "small and not big"], ["shop.models.small"]),
        (["shop::shop.clean", "shop::shop.models"], ["shop.clean", "shop.models"]),
        (["--cuda-fork-imports-exclude=*.models,shop.[bfhl]*"], ["shop", "shop.clean"]),
    ],
)
def test_tests_are_selected_like_others(
    shop: pytest.Pytester, args: list[str], expected: list[str]
) -> None:
    session = run_audit(shop, "--cuda-fork-imports=shop", "--collect-only", "-q", *args)
    found = [line.partition("::")[2] for line in session.out.splitlines() if "::" in line]
    assert found == expected


def test_last_failed_and_deselected_and_maxfail(shop: pytest.Pytester) -> None:
    deselect = ["--deselect=shop::shop.hook", "--deselect=shop::shop.models.big"]
    first = run_audit(shop, "--cuda-fork-imports=shop", *deselect)
    assert set(first.verdicts) == set(SHOP_VERDICTS) - {"shop.hook", "shop.models.big"}
    again = run_audit(shop, "--cuda-fork-imports=shop", "--lf")
    assert again.verdicts == {
        name: verdict
        for name, verdict in SHOP_VERDICTS.items()
        if verdict.startswith("touches") and name != "shop.models.big"
    }
    stopped = run_audit(shop, "--cuda-fork-imports=shop", "-x", "-k", "not hook")
    assert [name for name, outcome in stopped.outcomes.items() if outcome == "failed"] == [
        "shop::shop.flash"
    ]
    assert "stopping after 1 failures" in stopped.out


@needs_xdist
def test_with_xdist_the_tests_are_the_same(shop: pytest.Pytester) -> None:
    session = run_audit(shop, *XDIST, "-n2", "--cuda-fork-imports=shop")
    assert session.verdicts == SHOP_VERDICTS
    assert "shop/flash.py:2 (class body): 3 modules" in session.section()
    assert not any(name.partition(".")[0] == "shop" for name in session.imported)
    one = run_audit(shop, *XDIST, "-n2", "--cuda-fork-imports=shop", "shop::shop.late")
    assert one.outcomes == {"shop::shop.late": "failed"}


def test_namespace_packages_and_what_is_no_module(pytester: pytest.Pytester) -> None:
    write_package(pytester.path, "space", {"inner/one": "", "inner/deep/two": TOUCH, "x/y": ""})
    (pytester.path / "space" / "inner" / "stub.pyi").touch()
    (pytester.path / "space" / "inner" / "not-a-name.py").touch()
    (pytester.path / "space" / "data").mkdir()
    (pytester.path / "space" / "inner" / "__main__.py").write_text("1/0")
    session = run_audit(pytester, "--cuda-fork-imports=space.inner,space.x.y")
    assert session.verdicts == {
        "space.inner": "clean",
        "space.inner.deep": "clean",
        "space.inner.deep.two": "touches",
        "space.inner.one": "clean",
        "space.x.y": "clean",
    }
    assert "space.inner::space.inner.one" in session.outcomes


def _an_extension() -> Path:
    folder = Path(sysconfig.get_config_var("DESTSHARED"))
    names = ("_heapq", "_bisect", "_queue", "_zoneinfo", "_csv")
    files = [file for name in names for file in sorted(folder.glob(f"{name}.*.so"))]
    if not files:
        pytest.skip("this Python has its extension modules built in")
    return files[0]


def test_compiled_modules_are_audited_too(pytester: pytest.Pytester) -> None:
    source = _an_extension()
    folder = write_package(pytester.path, "fast", {"__init__": ""})
    shutil.copy(source, folder / source.name)
    (folder / f"broken{sysconfig.get_config_var('EXT_SUFFIX')}").write_bytes(b"no ELF")
    (folder / "libother.so").write_bytes(b"\x7fELF\x02\x01" + bytes(100))
    name = source.name.partition(".")[0]
    session = run_audit(pytester, "--cuda-fork-imports=fast")
    assert session.verdicts["fast"] == "clean"
    assert session.verdicts[f"fast.{name}"] == "clean"
    assert session.verdicts["fast.broken"] == "not importable"


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["--cuda-fork-imports=shopp"], "*--cuda-fork-imports*no module 'shopp'*mean 'shop'*"),
        (["--cuda-fork-imports=shop.model"], "*has no module 'model'*mean 'shop.models'*"),
        (["--cuda-fork-imports=a b"], "*--cuda-fork-imports: 'a b' is not a module name*"),
        (["--cuda-fork-imports=shop", "shop::shop.nope"], "*not found: shop::shop.nope*"),
        (
            ["--cuda-fork-imports=shop", "--cuda-fork-imports-without=sys"],
            "*--cuda-fork-imports-without: sys cannot be hidden*imported already*",
        ),
    ],
)
def test_what_is_not_there_is_a_usage_error(
    shop: pytest.Pytester, args: list[str], complaint: str
) -> None:
    session = run_audit(shop, *args)
    assert session.result.ret == pytest.ExitCode.USAGE_ERROR
    session.result.stderr.fnmatch_lines([complaint])


def test_a_package_that_is_not_on_the_search_path_is_pointed_at(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(pytester.path, "shop", SHOP)
    script = (
        "import os, sys; here = ('', os.getcwd()); "
        "sys.path[:] = [path for path in sys.path if path not in here]; "
        "import pytest; sys.exit(pytest.main())"
    )
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p pytest_cudafork.plugin --cuda-fork-imports=shop")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    result = pytester.run(sys.executable, "-c", script, timeout=TIME_LIMIT)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*folder 'shop' is here, but not on the module search path*"])


def test_strict_fails_what_cannot_be_imported(shop: pytest.Pytester) -> None:
    args = ("--cuda-fork-imports=shop.broken", "--cuda-fork-imports-strict")
    session = run_audit(shop, *args)
    assert session.outcomes == {"shop.broken::shop.broken": "failed"}
    assert "cannot be imported: ModuleNotFoundError" in session.text("shop.broken::shop.broken")


def test_what_cannot_be_observed_is_an_error(pytester: pytest.Pytester) -> None:
    write_package(pytester.path, "odd", {"__init__": "import signal; signal.getitimer = None"})
    session = run_audit(pytester, "--cuda-fork-imports=odd")
    assert session.outcomes == {"odd::odd": "error"}
    reason = "not observable: odd has broken the interpreter: TypeError"
    assert reason in session.text("odd::odd")
    assert "not observable: odd: odd has broken the interpreter: TypeError" in session.section()

"""An audit beside other tests and other options: what runs, and that neither disturbs the other."""

from __future__ import annotations

import pytest

from tests.support.imports import (
    SHOP,
    SHOP_VERDICTS,
    TOUCH,
    Session,
    run_audit,
    write_package,
)

IMPORTS = "--cuda-fork-imports=shop"
TEST = "def test_one(): pass\n"


@pytest.fixture
def shop(pytester: pytest.Pytester) -> pytest.Pytester:
    write_package(pytester.path, "shop", SHOP)
    return pytester


@pytest.fixture
def clean_shop(pytester: pytest.Pytester) -> pytest.Pytester:
    """A shop in which there is nothing to confirm but a few clean modules."""
    files = {name: SHOP[name] for name in ("__init__", "clean", "models/__init__")}
    write_package(pytester.path, "shop", files)
    return pytester


def _ran(session: Session) -> tuple[bool, bool]:
    """Whether ordinary tests ran, and whether modules were imported."""
    names = session.outcomes
    return "test_it.py::test_one" in names, any(name.startswith("shop::") for name in names)


@pytest.mark.parametrize(
    ("ini", "args", "ran"),
    [
        (False, [IMPORTS], (False, True)),
        (False, [IMPORTS, "test_it.py"], (True, True)),
        (True, [], (True, True)),
        (True, ["test_it.py"], (True, False)),
        (True, ["test_it.py::test_one"], (True, False)),
        (True, ["shop::shop.clean"], (False, True)),
        (True, ["shop::shop.clean", "test_it.py"], (True, True)),
        (True, ["-k", "one or clean"], (True, True)),
    ],
)
def test_what_runs(
    clean_shop: pytest.Pytester, ini: bool, args: list[str], ran: tuple[bool, bool]
) -> None:
    clean_shop.makepyfile(test_it=TEST)
    if ini:
        clean_shop.makeini("[pytest]\ncuda_fork_imports = shop.clean\n    shop.models\n    shop\n")
    session = run_audit(clean_shop, *args)
    assert _ran(session) == ran
    if "shop::shop.clean" in args:
        assert session.verdicts == {"shop.clean": "clean"}


def test_how_to_audit_is_in_vain_beside_paths_that_leave_the_audit_out(
    clean_shop: pytest.Pytester,
) -> None:
    clean_shop.makepyfile(test_it=TEST)
    ini = "[pytest]\ncuda_fork_imports = shop\n"
    clean_shop.makeini(ini)
    session = run_audit(clean_shop, "test_it.py", "--cuda-fork-imports-strict")
    assert session.result.ret == pytest.ExitCode.USAGE_ERROR
    session.result.stderr.fnmatch_lines(
        ["ERROR: --cuda-fork-imports-strict: nothing is audited: *"]
    )
    for args in (
        [],
        ["shop::shop.clean"],
        ["test_it.py", IMPORTS],
        ["test_it.py", "--cuda-fork-imports="],
    ):
        session = run_audit(clean_shop, *args, "--cuda-fork-imports-strict")
        assert session.result.ret == 0, args
    known = "cuda_fork_imports_baseline = not_there.toml\n"
    clean_shop.makeini(f"{ini}addopts = --cuda-fork-imports-strict\n{known}")
    session = run_audit(clean_shop, "test_it.py")
    assert _ran(session) == (True, False), "addopts and the ini file wait for the whole suite"
    assert run_audit(clean_shop).result.ret == pytest.ExitCode.USAGE_ERROR


def test_the_environment_asks_for_an_audit_too(shop: pytest.Pytester) -> None:
    shop.makepyfile(test_it=TEST)
    env = {"PYTEST_CUDA_FORK_IMPORTS": "shop.clean", "PYTEST_CUDA_FORK_IMPORTS_JOBS": "1"}
    assert set(run_audit(shop, env=env).outcomes) == {
        "test_it.py::test_one",
        "shop.clean::shop.clean",
    }


@pytest.mark.parametrize(
    "args",
    [
        ["--cuda-fork-check=touch"],
        ["--cuda-fork-isolate=fork"],
        ["--cuda-fork-isolate=spawn"],
        ["--forked"],
        ["-s", "-p", "no:cacheprovider", "-p", "no:faulthandler"],
        ["-W", "error", "--setup-show", "--durations=3", "-vv"],
        ["-o", "faulthandler_timeout=0.2"],
        ["--import-mode=importlib", "--tb=line", "--capture=sys"],
        ["--stepwise", "--maxfail=99", "--color=yes"],
    ],
    ids=lambda args: args[0],
)
def test_beside_other_options(shop: pytest.Pytester, args: list[str]) -> None:
    session = run_audit(shop, IMPORTS, *args, "--deselect=shop::shop.hook")
    expected = {name: verdict for name, verdict in SHOP_VERDICTS.items() if name != "shop.hook"}
    if args[0] == "--stepwise":
        expected = {name: expected[name] for name in list(expected)[:4]}
    assert session.verdicts == expected
    assert session.result.ret in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
    told = session.result.stderr.str()
    if "faulthandler_timeout=0.2" in args:  # a test that waits for its import may take longer
        assert "Timeout (0:00:00.2" in told or told == ""
    else:
        assert told == ""


def test_without_a_terminal_plugin_the_status_tells(shop: pytest.Pytester) -> None:
    session = run_audit(shop, IMPORTS, "-p", "no:terminal")
    assert session.result.ret == pytest.ExitCode.TESTS_FAILED
    assert session.verdicts == SHOP_VERDICTS


def test_together_with_the_check_each_says_its_own(shop: pytest.Pytester) -> None:
    shop.makepyfile(test_it=f"def test_one():\n    {TOUCH}\n")
    session = run_audit(shop, IMPORTS, "test_it.py", "--cuda-fork-check=touch")
    assert session.verdicts == SHOP_VERDICTS
    assert session.outcomes["test_it.py::test_one"] in ("failed", "error")
    counted = [line for line in session.out.splitlines() if line.startswith("touches: ")]
    assert len(counted) == 1
    assert counted[0].startswith("touches: 1")


def test_a_package_that_the_session_itself_uses(pytester: pytest.Pytester) -> None:
    session = run_audit(pytester, "--cuda-fork-imports=json,pytest_cudafork.observe.story.touch")
    assert set(session.verdicts.values()) == {"clean"}
    assert "json.decoder" in session.verdicts


def test_a_package_that_a_conftest_has_imported(shop: pytest.Pytester) -> None:
    session = run_audit(shop, IMPORTS, conftest="import shop.clean\n")
    assert session.verdicts == SHOP_VERDICTS

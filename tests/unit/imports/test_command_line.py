"""The import audit without a test suite: ``python -m pytest_cudafork imports PKG``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pytest_cudafork.imports import command_line as command_line_module
from pytest_cudafork.imports.command_line import main
from pytest_cudafork.imports.report.summary import Line
from pytest_cudafork.settings.import_options import IMPORT_OPTIONS
from tests.support.documents import read_document, read_sarif
from tests.support.imports import (
    SHOP,
    SHOP_VERDICTS,
    TOUCH,
    command_line,
    write_package,
)

PHANTOM = ("--device", "phantom:sm_90")


@pytest.fixture
def shop(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(pytester.path))
    return write_package(pytester.path, "shop", SHOP)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "status"),
    [
        (["shop.clean"], 0),
        (["shop.flash"], 1),
        (["shop.hook"], 1),
        (["shop.broken"], 0),
        (["shop.broken", "--strict"], 1),
        (["shop.clean,shop.models.small", "--jobs=1", "--memory=4G"], 0),
        (["shop", "--exclude=shop.[bfhl]*,shop.models.big"], 0),
        (["odd"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_exit_status_tells(
    shop: Path, args: list[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    write_package(shop.parent, "odd", {"__init__": "import signal; signal.getitimer = None"})
    assert main([*args, *PHANTOM, "--no-confirm"]) == status
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines()[-1].startswith(args[0].rpartition(",")[2])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["shop", "--since="], "argument --since: '' is not the name of a commit"),
        (["shop", "--since=HEAD", "--preload"], "--preload needs all imports, --since leaves some"),
        ([], "the following arguments are required: PKG"),
        (["shopp"], "There is no module 'shopp'"),
        (["shop", "--nope"], "unrecognized arguments: --nope"),
        (["shop", "--update"], "--update: there is no file to write: name it with --baseline=FILE"),
        (["shop", "--baseline=nope.toml"], "nope.toml: there is no such baseline. Create it with"),
        (["shop.flush"], "(SHOP) has no module 'flush'. Did you mean 'shop.flash'?"),
        (["shop.models.nope"], "The package 'shop.models' (SHOP/models) has no module 'nope'.\n"),
        (["shop", "--timeout=soon"], "'soon' is not a number of seconds above 0"),
        (["shop", "--graph=no/where/g.html"], "--graph: there is no folder"),
        (["shop", "--json=no/where/r.json"], "--json: there is no folder 'no/where'"),
        (["shop", "--sarif=."], "--sarif: '.' is a folder"),
        (["shop", "--json", "shop/clean.py"], "is a Python file, and would be written over"),
        (["shop", "--json=r", "--sarif=./r"], "--sarif: './r' is the file of --json, too"),
        (["shop", "--graph=g.html", "--sarif=g.html"], "g.html' is the file of --sarif, too"),
        (["shop", "--baseline=b", "--json=./b"], "--json: './b' is the file of --baseline, too"),
        (["shop", "--without=json"], "json cannot be hidden"),
        (["shop", "--device=gpu"], "gpu"),
        ([","], "no package is named"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_end_with_2(
    shop: Path, args: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(args)
    out, err = capsys.readouterr()
    assert ended.value.code == 2
    assert words.replace("SHOP", str(shop)) in err
    assert "--cuda-fork" not in err, "an option of pytest's, which is called otherwise here"
    assert "Traceback" not in err
    assert out == ""


def test_a_commit_is_judged_by_all_its_imports(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["shop", "--since=HEAD", "--fail-on=any"]) == 129
    assert "--fail-on needs all imports, --since leaves some out" in capsys.readouterr().err


@pytest.mark.slow
def test_all_that_it_prints_and_writes(pytester: pytest.Pytester, shop: Path) -> None:
    result = command_line(
        pytester, "shop", "-v", "--json=records.json", "--sarif=r.sarif", "--graph=g.html"
    )
    assert result.ret == 1
    assert result.stderr.str() == ""
    lines = result.stdout.str().splitlines()
    for line in (
        "shop.flash: the import initializes CUDA",
        "shop/flash.py:2 (class body): 3 modules",
        "  make `shop/layers.py:1` (shop.layers imports shop.flash) lazy: frees 2 of 3",
        "crashed: shop.hook: the process exited with status 7 during the import",
        "records: records.json",
        "SARIF: r.sarif",
        f"graph: {shop.parent}/g.html",
    ):
        assert line in lines, lines
    assert "\x1b" not in result.stdout.str()
    assert (shop.parent / "g.html").stat().st_size > 10_000
    data = read_document(shop.parent / "records.json", "audit")["modules"]
    assert {each["module"]: each["verdict"] for each in data} == SHOP_VERDICTS
    (flash,) = [each for each in data if each["module"] == "shop.flash"]
    assert (flash["where"], flash["scope"]) == (f"{shop}/flash.py:2", "class body")
    assert (flash["confirmed"], flash["artifact"]) == (True, "")
    assert {each["artifact"] for each in data} == {""}
    results = read_sarif(json.loads((shop.parent / "r.sarif").read_text()))
    places = [each["locations"][0]["physicalLocation"] for each in results]
    assert {"uri": "shop/flash.py", "uriBaseId": "SRCROOT"} in [
        each["artifactLocation"] for each in places
    ]


@pytest.mark.slow
def test_what_may_be_imported_before_forks(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(pytester.path))
    monkeypatch.delenv("WARES_LEVEL", raising=False)
    files = {
        "__init__": "",
        "config": "import os\nLEVEL = os.getenv('WARES_LEVEL')",
        "log": "from wares import config\nFILE = open('/dev/null')",
        "flash": TOUCH,
    }
    write_package(pytester.path, "wares", files)
    assert main(["wares", *PHANTOM, "--no-confirm", "--preload", "--json=r.json"]) == 1
    out = capsys.readouterr().out.partition("\n\n")[2].splitlines()
    assert out == [
        "safe to import before forks: 3 of 4 modules; these import them all: wares.log",
        "heed: forks share an open descriptor (/dev/null): wares.log",
        "read from the environment by imports (a change after that goes unnoticed):",
        "  WARES_LEVEL (not set here), wares/config.py:2: wares.config, wares.log",
        "not before forks: wares.flash: the import initializes CUDA at wares/flash.py:1: "
        "module body, runs at import",
    ]
    data = {each["module"]: each for each in read_document(Path("r.json"), "audit")["modules"]}
    place = str(pytester.path / "wares" / "config.py")
    assert data["wares.log"]["traces"]["environment"] == [
        {"name": "WARES_LEVEL", "where": f"{place}:2", "is_set": False}
    ]
    assert main(["wares.log", *PHANTOM, "--no-confirm", "--json=r.json"]) == 0
    (log,) = read_document(Path("r.json"), "audit")["modules"]
    assert log["traces"] is None
    assert "before forks" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_baseline_from_the_shell(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["shop", "--exclude=shop.hook", "--baseline=known.toml", "--no-confirm", *PHANTOM]
    assert main([*args, "--update"]) == 0
    text = (shop.parent / "known.toml").read_text()
    assert '"shop.models.big" = "shop/flash.py:2"' in text
    assert "--update to those of `python -m pytest_cudafork imports`" in text
    assert main(args) == 0
    (shop / "clean.py").write_text(TOUCH)
    (shop / "late.py").write_text("")
    assert main(args) == 1
    out = capsys.readouterr().out
    assert "remove from known.toml: shop.late, it is clean or gone" in out
    assert main(["shop.clean", *PHANTOM, "--json=/dev/full", "--no-confirm"]) == 2
    assert "the records cannot be written: " in capsys.readouterr().out


def test_the_program_has_a_usage(pytester: pytest.Pytester) -> None:
    run = [sys.executable, "-m", "pytest_cudafork"]
    for args, status in (([], 2), (["--help"], 0), (["import", "x"], 2)):
        result = pytester.run(*run, *args)
        assert result.ret == status
        text = result.stdout.str() + result.stderr.str()
        assert "usage: python -m pytest_cudafork COMMAND" in text
        assert "\n  imports PKG " in text
    result = pytester.run(*run, "imports", "--help")
    assert result.ret == 0
    for option in IMPORT_OPTIONS[1:]:
        assert option.name.replace("cuda_fork_imports_", "--") in result.stdout.str()
    words = " ".join(result.stdout.str().split())
    assert "--cuda-fork" not in words
    assert "(one that cannot be imported counts with --strict only" in words


@pytest.mark.slow
def test_what_touches_and_then_ends_its_process_counts_as_touching(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_package(
        shop.parent, "abrupt", {"__init__": "", "ends": f"{TOUCH}\nimport os; os._exit(0)"}
    )
    args = ["abrupt", "--baseline=known.toml", *PHANTOM]
    assert main([*args[:1], *PHANTOM]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "abrupt/ends.py:1 (module body): 1 module"
    assert lines[2] == (
        "initializes CUDA, then crashes: abrupt.ends: the process exited with status 0 during the "
        "import"
    )
    assert lines[-1] == "abrupt: 2 modules: 1 clean, 1 initialize CUDA, then crash"
    assert main([*args, "--update", "-v"]) == 0
    assert '"abrupt.ends" = "abrupt/ends.py:1"' in (shop.parent / "known.toml").read_text()
    assert main(args) == 0
    capsys.readouterr()
    assert main(["abrupt", "-v", *PHANTOM]) == 1
    told = capsys.readouterr().out
    assert "abrupt.ends: the import initializes CUDA, then crashes: the process exited" in told
    assert "import os; os._exit(0)" not in told
    assert TOUCH in told


@pytest.mark.slow
def test_verbose_names_what_the_summary_leaves_out(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_package(shop.parent, "bad", {"__init__": ""})
    write_package(shop.parent, "bad", {f"m{n}": f"raise ValueError({n})" for n in range(8)})
    main(["bad", "--no-confirm", *PHANTOM])
    assert "... and 3 modules for 3 more reasons (-v names them)" in capsys.readouterr().out
    main(["bad", "--no-confirm", "-v", *PHANTOM])
    lines = capsys.readouterr().out.splitlines()
    for number in range(8):
        assert f"not importable: bad.m{number}: ValueError: {number}" in lines


@pytest.mark.slow
def test_text_that_the_terminal_cannot_show(pytester: pytest.Pytester) -> None:
    write_package(pytester.path, "words", {"__init__": "raise ValueError('\\u6f22 \\udcff')"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONIOENCODING", "ascii")
        result = command_line(pytester, "words", "--strict", "-v", "--no-confirm")
    assert result.ret == 1
    assert result.stderr.str() == ""
    result.stdout.fnmatch_lines([r"not importable: words: ValueError: [?] \udcff"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        (["shop", "--fail-on=shop/flash.py::Kernel"], 1, "bad: shop.flash initializes CUDA at"),
        (["shop", "--fail-on", "shop/late.py::nope"], 125, "cannot be judged here: shop.late"),
        (["shop.clean", "--fail-on=any"], 0, "any: good: nothing does"),
        (["shop.broken", "--fail-on=any"], 125, "cannot be judged here: shop.broken is not"),
        (["nope", "--fail-on=any"], 125, "cannot be judged here: There is no module 'nope'"),
        (["shop", "--fail-on=any", "--json=/dev/full"], 129, "cannot be written"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_exit_status_is_one_for_git_bisect(
    shop: Path, args: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*args, *PHANTOM, "--no-confirm"]) == status
    assert words in capsys.readouterr().out
    assert not list(shop.rglob("__pycache__")), "the next commit may have the same time and size"


@pytest.mark.parametrize(
    "args",
    [["shop", "--fail-on=shop/flash.py:3"], ["shop", "--fail-on"], ["shop", "--fail-on=any", "-x"],
     ["shop", "--fail-on=any", "--update", "--baseline=b.toml"], [",", "--fail-on=any"],
     ["shop", "--fail-on=any", "--json=no/where.json"]],
)  # fmt: skip
def test_a_wrong_command_ends_a_bisection_instead_of_judging_the_commit(
    shop: Path, args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 129
    assert "error: " in capsys.readouterr().err


def test_a_fault_of_ours_ends_a_bisection_too(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*args: object, **kw: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(command_line_module, "run", broken)
    assert main(["shop", "--fail-on=any", *PHANTOM]) == 129
    assert "KeyError: 'ours'" in capsys.readouterr().err


@pytest.mark.parametrize(("variables", "colors"), [((), True), (("NO_COLOR",), False)])
def test_colors_are_as_pytest_has_them(
    variables: tuple[str, ...],
    colors: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("NO_COLOR", "PY_COLORS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("FORCE_COLOR", *variables):
        monkeypatch.setenv(name, "1")
    command_line_module._print(Line("a line", "bad"), Line("plain"))
    first, second = capsys.readouterr().out.splitlines()
    assert ("\x1b[31m" in first) == colors
    assert (
        first.replace("\x1b[31m", "").replace("\x1b[1m", "").replace("\x1b[0m", ""),
        second,
    ) == (
        "a line",
        "plain",
    )

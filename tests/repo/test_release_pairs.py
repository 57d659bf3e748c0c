"""The benchmark of releases before and after a fix: its list, its judgment, what it writes."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.repo.sources import PROJECT

ROW = """
[[pair]]
package = "lib"
bug = "owner/lib#1"
before = "1.0"
after = "1.1"
run = "import lib"
culprit = ["lib/", "probe()"]
"""


@pytest.fixture
def installed(tmp_path: Path) -> str:
    """Write a library as it would be installed; return the place of its only line."""
    file = tmp_path / "site-packages" / "lib" / "core.py"
    file.parent.mkdir(parents=True)
    file.write_text("FLAG = probe()\n", encoding="utf-8")
    return f"{file}:1"


def document(culprit: str = "", verdict: str = "guarded") -> dict[str, Any]:
    """Return what ``run --json`` writes, as far as it is read."""
    forks = [{"verdict": verdict}] if culprit else []
    findings = [{"culprit": culprit}] * 2 if culprit else []
    return {"forks": forks, "findings": findings, "not_observable": []}


FINE = {"raised": "", "flag": False}


def test_every_pair_is_of_a_report_that_the_corpus_has(benchmark: Callable[[str], Any]) -> None:
    rows = benchmark("release_rows")
    pairs = rows.read(rows.LIST.read_text(encoding="utf-8"))
    corpus = (PROJECT / "docs" / "reference" / "corpus.md").read_text(encoding="utf-8")
    assert len(pairs) >= 10
    assert [pair.bug for pair in pairs if pair.bug not in corpus] == []


def test_every_library_is_named_with_its_release_and_packages(
    benchmark: Callable[[str], Any],
) -> None:
    real = benchmark("real_libraries")
    libraries = real.read(real.LIST.read_text(encoding="utf-8"))
    assert len({each.release.package for each in libraries}) >= 12
    assert all(each.imports and each.release.version for each in libraries)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("after =", "later ="), "pair 1: unknown or missing: after, later"),
        (('culprit = ["lib/", ', 'culprit = ["lib/", "", '), "pair 1: culprit is a file"),
        (('"1.1"', "1.1"), "pair 1: a value is of another kind"),
        (("[[pair]]", "[[pair]]\nbuild = 1"), "pair 1: a value is of another kind"),
    ],
)
def test_a_wrong_row_is_told(
    benchmark: Callable[[str], Any], change: tuple[str, str], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        benchmark("release_rows").read(ROW.replace(*change))


def test_a_library_with_an_unknown_key_is_told(benchmark: Callable[[str], Any]) -> None:
    with pytest.raises(ValueError, match=r"library 1: .*versoin"):
        benchmark("real_libraries").read('[[library]]\nimports = "lib"\nversoin = "1"\n')


def test_environments_differ_where_what_they_hold_does(benchmark: Callable[[str], Any]) -> None:
    (pair,) = benchmark("release_rows").read(ROW + 'needs_after = ["other"]\n')
    before, after = pair.release(pair.before), pair.release(pair.after)
    assert (before.needs, after.needs) == ((), ("other",))
    assert before.folder != after.folder
    assert before.folder.startswith("lib-1.0-")


def test_a_refused_fork_counts_with_the_line_that_is_named(
    benchmark: Callable[[str], Any], installed: str
) -> None:
    (pair,) = benchmark("release_rows").read(ROW)
    verdicts = benchmark("release_verdicts")
    before = verdicts.side(document(installed), FINE, "")
    after = verdicts.side(document(), FINE, "")
    judged = verdicts.Judged(pair, before, after)
    assert before.lines == ((installed, "FLAG = probe()"),)
    assert verdicts.row(judged)[2:] == ("no", "yes", "yes", "yes", "yes")
    assert verdicts.notes(judged) == ["- lib 1.0: named `lib/core.py:1`: `FLAG = probe()`"]
    assert verdicts.counts([judged])["right_line"] == 1


def test_another_line_is_not_the_right_one_and_a_fork_that_is_made_is_not_told(
    benchmark: Callable[[str], Any], installed: str
) -> None:
    (pair,) = benchmark("release_rows").read(ROW.replace("probe()", "ask()"))
    verdicts = benchmark("release_verdicts")
    before = verdicts.side(document(installed), FINE | {"flag": True}, "")
    after = verdicts.side(document(installed, verdict="watched"), FINE, "")
    judged = verdicts.Judged(pair, before, after)
    assert (before.told, judged.line, judged.after.told) == (True, False, False)
    assert verdicts.row(judged)[2:4] == ("yes", "yes")


def test_what_was_not_seen_is_not_silence(benchmark: Callable[[str], Any], installed: str) -> None:
    verdicts = benchmark("release_verdicts")
    unseen = {**document(), "not_observable": ["a C program"]}
    raised = {"raised": "ImportError: no x", "flag": False}
    sides = [
        verdicts.side(None, None, "the end"),
        verdicts.side(document(), None, "Killed"),
        verdicts.side(unseen, FINE, ""),
        verdicts.side(document(), raised, ""),
    ]
    assert [each.why_not for each in sides] == [
        "the check wrote no report: the end",
        "the program did not reach its fork: Killed",
        "not observable: a C program",
        "the statements raised ImportError: no x",
    ]
    told = verdicts.side(document(installed), raised, "")
    assert (told.why_not, told.told, told.raised) == ("", True, raised["raised"])


def test_a_pair_that_did_not_run_is_shown_and_not_counted(benchmark: Callable[[str], Any]) -> None:
    (pair,) = benchmark("release_rows").read(ROW)
    verdicts = benchmark("release_verdicts")
    side = verdicts.Side
    judged = verdicts.Judged(pair, side(why_not="pip: no wheel"), side())
    text, data = benchmark("release_pairs").report([judged])
    assert "- lib 1.0: not run: pip: no wheel" in text
    assert (data["totals"]["pairs"], data["totals"]["ran"], data["not_run"]) == (
        *(1, 0),
        ["lib 1.0, 1.1"],
    )
    assert json.loads(json.dumps(data)) == data


def test_a_program_that_writes_nothing_has_no_document(
    benchmark: Callable[[str], Any], tmp_path: Path
) -> None:
    processes = benchmark("release_processes")
    assert processes.started(["true"], tmp_path, {}) == "it wrote nothing"
    assert processes.started(["sh", "-c", "echo a; echo $WORD"], tmp_path, {"WORD": "b"}) == "b"
    assert processes.written(tmp_path / "none.json") is None
    (tmp_path / "half.json").write_text("{")
    assert processes.written(tmp_path / "half.json") is None


def test_the_reason_of_a_failed_build_is_found_in_what_pip_wrote(
    benchmark: Callable[[str], Any],
) -> None:
    reason = benchmark("release_environments").reason
    assert reason("x.cpp:1: error: no y\nERROR: Failed") == "pip: x.cpp:1: error: no y"
    assert (
        reason("noise\nERROR: No matching distribution") == "pip: ERROR: No matching distribution"
    )
    assert reason("") == "pip: pip said nothing"


@pytest.mark.slow
def test_the_program_writes_what_was_raised_and_forks_then(
    benchmark: Callable[[str], Any], tmp_path: Path
) -> None:
    program = Path(benchmark("release_pairs").__file__).with_name("release_program.py")
    statements, outcome = tmp_path / "program.py", tmp_path / "outcome.json"
    statements.write_text("import os\nprint('begun', flush=True)\nraise SystemExit('no\\n way')\n")
    command = [sys.executable, str(program), str(statements), str(outcome)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "begun\n"
    assert json.loads(outcome.read_text()) == {"raised": "SystemExit: no way", "flag": False}


def test_an_audit_is_told_by_lines_with_the_most_modules_first(
    benchmark: Callable[[str], Any], installed: str
) -> None:
    real = benchmark("real_libraries")
    (library,) = real.read('[[library]]\npackage = "lib"\nversion = "1"\nimports = "lib"\n')

    def module(name: str, verdict: str, where: str = "") -> dict[str, str]:
        return {"module": name, "verdict": verdict, "where": where}

    modules = [
        module("lib", "clean"),
        module("lib.z", "touches", "/x/site-packages/lib/z.py:7"),
        module("lib.a", "touches", installed),
        module("lib.b", "touches, then fails to import", installed),
        module("lib.c", "not importable"),
        module("lib.d", "timed out"),
    ]
    found = real.judge(library, {"modules": modules})
    assert found.lines[0].modules == ("lib.a", "lib.b")
    first = dataclasses.replace(found.lines[0], again="lib/core.py:1")
    found = dataclasses.replace(found, lines=[first, *found.lines[1:]])
    text, data = real.report([found, real.Found(library, {}, (), "no audit: x")])
    told = [line for line in text.splitlines() if line.startswith("- ")]
    twice = "`lib/core.py:1`: `FLAG = probe()`: 2 modules, as `lib.a`; seen by a fresh interpreter"
    assert told[0] == f"- {twice}"
    once = "`lib/z.py:7`: ``: 1 module, `lib.z`; NOT seen, but nothing, by a fresh interpreter"
    assert told[1] == f"- {once}"
    assert told[2] == "- not audited: no audit: x"
    numbers = text.splitlines()[2].replace("|", " ").split()
    assert numbers == ["lib", "1", "6", "1", "3", "1", "1"]
    assert data["libraries"]["lib 1"]["why_not"] == "no audit: x"


@pytest.mark.parametrize("name", ["release_pairs", "real_libraries"])
def test_where_no_release_can_be_installed_the_exit_status_is_no_verdict(
    name: str,
    benchmark: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    script = benchmark(name)

    def fails(folder: Path, release: Any) -> Path:
        raise script.CannotInstallError("pip: no network")

    monkeypatch.setattr(script, "environment", fails)
    assert script.main(["--folder", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "pip: no network" in out
    assert json.loads(out.splitlines()[-1])["topic"] == name


def test_of_pairs_that_did_not_run_there_is_no_figure(benchmark: Callable[[str], Any]) -> None:
    figures = benchmark("long_parts").LONG_CPU["releases"].figures
    assert figures({"totals": {"ran": 4, "told_before": 2}}) == {
        "pairs of releases, to those told before": 2.0
    }
    with pytest.raises(ValueError, match="nothing was tried"):
        figures({"totals": {"ran": 0, "told_before": 0}})

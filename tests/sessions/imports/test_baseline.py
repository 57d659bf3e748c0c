"""The baseline in sessions: today's modules are accepted, new ones fail, clean ones are to go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.imports import (
    TOUCH,
    XDIST,
    Session,
    needs_xdist,
    run_audit,
    write_package,
)

OLD = {
    "__init__": "",
    "a": "",
    "b": TOUCH,
    "c": "from big import b",
    "d": f"{TOUCH}\nraise OSError('d')",
    "e": "import os; os._exit(1)",
}
IMPORTS = "--cuda-fork-imports=big"
BASELINE = "--cuda-fork-imports-baseline=known.toml"
UPDATE = "--cuda-fork-imports-update"

WRITTEN = """\
[big]
"big.b" = "big/b.py:1"
"big.c" = "big/b.py:1"
"big.d" = "big/d.py:1"
"""


@pytest.fixture
def big(pytester: pytest.Pytester) -> pytest.Pytester:
    write_package(pytester.path, "big", OLD)
    return pytester


def _body(big: pytest.Pytester) -> str:
    text = (big.path / "known.toml").read_text()
    return text[text.index("[") :] if "[" in text else ""


def _outcomes(session: Session) -> dict[str, str]:
    return {name.rpartition(".")[2]: outcome for name, outcome in session.outcomes.items()}


def test_from_the_first_baseline_to_an_empty_one(big: pytest.Pytester) -> None:
    first = run_audit(big, IMPORTS, BASELINE, UPDATE)
    assert _body(big) == WRITTEN
    assert f"baseline: {big.path}/known.toml (3 entries)" in first.section()
    assert _outcomes(first) == {
        "big::big": "passed",
        "a": "passed",
        "b": "xfailed",
        "c": "xfailed",
        "d": "xfailed",
        "e": "failed",
    }
    (big.path / "big" / "e.py").write_text("")

    again = run_audit(big, IMPORTS, BASELINE)
    assert again.result.ret == 0
    assert "in the baseline known.toml" in again.text("big::big.b")
    assert "big/b.py:1 (module body): 2 modules, all in the baseline" in again.section()

    (big.path / "big" / "a.py").write_text("from big import b")  # a new importer
    (big.path / "big" / "d.py").write_text("")  # is clean now
    (big.path / "big" / "b.py").write_text(f"\n\n{TOUCH}\n")  # its line has moved
    newer = run_audit(big, IMPORTS, BASELINE)
    assert newer.result.ret == 1
    assert {key for key, value in _outcomes(newer).items() if value == "failed"} == {"a"}
    section = newer.section()
    assert "big/b.py:3 (module body): 3 modules, 2 of them in the baseline" in section
    assert "remove from known.toml: big.d, it is clean or gone" in section
    assert _body(big) == WRITTEN

    (big.path / "big" / "a.py").write_text("")
    (big.path / "big" / "c.py").unlink()
    updated = run_audit(big, IMPORTS, BASELINE, UPDATE)
    assert updated.result.ret == 0
    assert _body(big) == '[big]\n"big.b" = "big/b.py:3"\n'

    (big.path / "big" / "b.py").write_text("")
    last = run_audit(big, IMPORTS, BASELINE, UPDATE)
    assert last.result.ret == 0
    assert _body(big) == ""
    assert (big.path / "known.toml").exists()
    assert run_audit(big, IMPORTS, BASELINE).result.ret == 0


def test_what_was_not_audited_is_kept(big: pytest.Pytester) -> None:
    (big.path / "known.toml").write_text(WRITTEN + '\n[other]\n"other.x" = "x.py:1"\n')
    (big.path / "big" / "b.py").write_text("")
    (big.path / "big" / "d.py").write_text("import time; time.sleep(600)")
    partial = run_audit(big, IMPORTS, BASELINE, UPDATE, "-k", "big.b")
    assert partial.result.ret == 0
    assert _body(big) == (
        '[big]\n"big.c" = "big/b.py:1"\n"big.d" = "big/d.py:1"\n\n[other]\n"other.x" = "x.py:1"\n'
    )
    limit = "--cuda-fork-imports-timeout=0.5"
    excluded = run_audit(
        big, IMPORTS, BASELINE, UPDATE, limit, "--cuda-fork-imports-exclude=big.c,big.e"
    )
    assert _outcomes(excluded)["d"] == "failed"
    assert '"big.c"' in _body(big)
    assert '"big.d"' in _body(big)


def test_an_audit_that_was_stopped_writes_nothing(big: pytest.Pytester) -> None:
    (big.path / "known.toml").write_text("")
    session = run_audit(big, IMPORTS, BASELINE, UPDATE, "-x")
    assert "the baseline was not written: the audit did not come to its end" in session.section()
    assert (big.path / "known.toml").read_text() == ""


@needs_xdist
def test_with_workers_it_is_written_once_and_the_same(big: pytest.Pytester) -> None:
    run_audit(big, *XDIST, "-n2", IMPORTS, BASELINE, UPDATE)
    assert _body(big) == WRITTEN
    again = run_audit(big, *XDIST, "-n2", IMPORTS, BASELINE, "-k", "not big.e")
    assert again.result.ret == 0


def test_runxfail_shows_what_is_accepted(big: pytest.Pytester) -> None:
    (big.path / "known.toml").write_text(WRITTEN)
    session = run_audit(big, IMPORTS, BASELINE, "--runxfail", "-k", "big.b")
    assert _outcomes(session) == {"b": "failed"}


@pytest.mark.parametrize(
    ("text", "args", "complaint"),
    [
        (None, [BASELINE], "*known.toml: there is no such baseline. Create it with *-update*"),
        ("[big", [BASELINE], "*known.toml:1: is not TOML*"),
        ('[big]\n"other.x" = "y"', [BASELINE], "*known.toml:2: 'other.x' is no module of 'big'*"),
        ("x", [UPDATE], "*--cuda-fork-imports-update: there is no file to write*-baseline=FILE*"),
    ],
    ids=["missing", "no toml", "wrong table", "no file"],
)
def test_a_baseline_that_cannot_be_used_is_a_usage_error(
    big: pytest.Pytester, text: str | None, args: list[str], complaint: str
) -> None:
    if text is not None:
        (big.path / "known.toml").write_text(text)
    session = run_audit(big, IMPORTS, *args)
    assert session.result.ret == pytest.ExitCode.USAGE_ERROR
    session.result.stderr.fnmatch_lines([complaint])


def test_a_baseline_that_cannot_be_written_fails_the_session(big: pytest.Pytester) -> None:
    missing = "--cuda-fork-imports-baseline=no/such/folder/known.toml"
    session = run_audit(big, IMPORTS, missing, UPDATE, "-k", "big.a")
    assert session.result.ret == pytest.ExitCode.TESTS_FAILED
    assert any(
        line.endswith("cannot be written: No such file or directory.") for line in session.section()
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_folder_that_is_read_only_fails_the_session(big: pytest.Pytester) -> None:
    folder = Path(big.path, "locked")
    folder.mkdir()
    folder.chmod(0o500)
    baseline = "--cuda-fork-imports-baseline=locked/known.toml"
    session = run_audit(big, IMPORTS, baseline, UPDATE, "-k", "big.a")
    assert session.result.ret == pytest.ExitCode.TESTS_FAILED
    assert any("cannot be written: Permission denied" in line for line in session.section())

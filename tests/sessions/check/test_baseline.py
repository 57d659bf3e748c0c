"""The check's baseline in sessions: today's culprits are accepted, others fail, clean ones go."""

from __future__ import annotations

import re

import pytest

from pytest_cudafork.report.merge_command import main
from tests.sessions.check.test_other_plugins import needs_xdist
from tests.support.sessions import assert_no_crash, check, module, outcomes, records

BASELINE = "--cuda-fork-baseline=known.toml"
UPDATE = "--cuda-fork-baseline-update"
SHRINK = "--cuda-fork-baseline-update=shrink"

LIB = """
import ctypes
ctypes.CDLL("libcuda.so.1").cuInit(0)
"""
TESTS = module("""
import lib

def test_forks():
    child()

def test_child_touches():
    child(lambda: touch())

def test_plain():
    pass
""")
HARMLESS = TESTS.replace("child()", "pass").replace("child(l", "(l")
WRITTEN = """\
["lib.py"]
"fork: <module>: ctypes.CDLL(\\"libcuda.so.1\\").cuInit(0)" = "test_it.py::test_child_touches"
"poisoned: <module>: ctypes.CDLL(\\"libcuda.so.1\\").cuInit(0)" = "test_it.py::test_child_touches"
"touch: <module>: ctypes.CDLL(\\"libcuda.so.1\\").cuInit(0)" = "collect test_it.py"
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """A suite in which an import touches, a test forks, and the child of another touches."""
    (pytester.path / "lib.py").write_text(LIB)
    (pytester.path / "test_it.py").write_text(TESTS)
    return pytester


def body(pytester: pytest.Pytester) -> str:
    """Return the entries of the baseline."""
    text = (pytester.path / "known.toml").read_text()
    return text[text.index("[") :] if "[" in text else ""


def section(result: pytest.RunResult) -> str:
    """Return the last section."""
    found: str = result.stdout.str().rpartition("= CUDA and fork =")[2]
    return found


def test_from_the_first_day_to_an_empty_baseline(suite: pytest.Pytester) -> None:
    first = check(suite, "touch", BASELINE, UPDATE)
    assert first.ret == 0, first.stdout.str()
    assert body(suite) == WRITTEN
    assert "baseline known.toml written: 3 now, 3 added, 0 removed" in section(first)

    lib, test = suite.path / "lib.py", suite.path / "test_it.py"
    lib.write_text("# a line more\n\n" + LIB)
    test.write_text(TESTS + "\n\ndef test_new():\n    child(lambda: None)\n")
    moved = check(suite, "touch", BASELINE)
    assert moved.ret == 0, moved.stdout.str()
    told = "accepted 1 touch, 3 forks, 1 poisoned touch, because of 1 line"
    assert f"baseline known.toml: {told}" in section(moved)
    assert "test_it.py::test_forks and in 2 more places" in section(moved)

    # another statement is another culprit, and the one that was accepted is gone
    lib.write_text(LIB.replace("cuInit(0)", "cuInit(1 - 1)"))
    test.write_text(TESTS)
    changed = check(suite, "fork", BASELINE)
    assert outcomes(changed) == {
        "test_forks": "FAILED",
        "test_child_touches": "FAILED",
        "test_plain": "PASSED",
    }
    gone = "gone from the tests (its text is not there any more): fork: lib.py: "
    assert gone in section(changed)
    assert f"remove them from known.toml by {SHRINK}" in section(changed)

    lib.write_text("")
    clean = check(suite, "fork", BASELINE, SHRINK)
    assert clean.ret == 0, clean.stdout.str()
    assert body(suite) == ""
    assert "written: 0 now, 0 added, 3 removed" in section(clean)


def test_what_is_new_fails_beside_what_is_accepted(suite: pytest.Pytester) -> None:
    assert check(suite, "touch", BASELINE, UPDATE).ret == 0
    new = "\n\ndef test_new():\n    touch()\n\ndef test_swallows():\n    try:\n        touch()\n"
    new += "    except OSError:\n        pass\n"
    (suite.path / "test_it.py").write_text(module(TESTS.partition("waitpid(pid, 0)")[2] + new))
    result = check(suite, "touch", BASELINE, SHRINK)
    assert_no_crash(result)
    assert outcomes(result) == {
        **dict.fromkeys(("test_forks", "test_child_touches", "test_plain"), "PASSED"),
        **dict.fromkeys(("test_new", "test_swallows"), "FAILED"),
    }
    assert body(suite) == WRITTEN  # shrink adds nothing


def test_what_nobody_sees_any_more_is_gone_after_a_whole_session(suite: pytest.Pytester) -> None:
    assert check(suite, "fork", BASELINE, UPDATE).ret == 0
    (suite.path / "test_it.py").write_text(
        TESTS.replace("child()", "pass").replace("child(l", "(l")
    )
    part = check(suite, "fork", BASELINE, SHRINK, "-k", "test_forks or test_child")
    assert part.ret == 0
    assert "gone" not in section(part)
    assert len(body(suite).splitlines()) == 3
    stopped = check(suite, "fork", BASELINE, UPDATE, "--maxfail=1", "-p", "no:cacheprovider")
    assert stopped.ret == 0
    assert "2 removed" in section(stopped)
    assert body(suite) == ""


def test_a_session_that_was_stopped_changes_nothing(suite: pytest.Pytester) -> None:
    (suite.path / "test_it.py").write_text(TESTS + "\n\ndef test_fails():\n    assert 0\n")
    result = check(suite, "fork", BASELINE, UPDATE, "-x")
    assert "the baseline was not changed: stopping after 1 failures" in section(result)
    assert not (suite.path / "known.toml").exists()


@needs_xdist
def test_workers_write_what_one_process_writes(suite: pytest.Pytester) -> None:
    result = check(suite, "touch", BASELINE, UPDATE, "-p", "xdist", "-n2")
    assert result.ret == 0, result.stdout.str()
    assert body(suite) == WRITTEN
    result = check(suite, "touch", BASELINE, "-p", "xdist", "-n2", "--cuda-fork-ledger=kept")
    assert result.ret == 0, result.stdout.str()
    accepted = records(suite.path / "kept", "accepted")
    assert len({each["pid"] for each in accepted}) == 2  # both workers import the library
    (suite.path / "lib.py").write_text("")
    result = check(suite, "touch", BASELINE, SHRINK, "-p", "xdist", "-n2")
    assert body(suite) == ""


@needs_xdist
def test_workers_that_deal_the_tests_out_in_another_way_remove_nothing(
    pytester: pytest.Pytester,
) -> None:
    """One test touches, another forks: in two workers nothing is refused, in one it still is."""
    tests = module("def test_touches():\n    touch()\n\ndef test_forks():\n    child()\n")
    (pytester.path / "test_it.py").write_text(tests)
    assert check(pytester, "fork", BASELINE, UPDATE).ret == 0
    written = body(pytester)
    assert "fork: test_touches: " in written
    result = check(pytester, "fork", BASELINE, SHRINK, "-p", "xdist", "-n2")
    assert result.ret == 0, result.stdout.str()
    assert "nothing of it was seen" in section(result)
    assert body(pytester) == written
    # Where the tests follow each other, one that forks no more is known not to.
    (pytester.path / "test_it.py").write_text(tests.replace("    child()", "    pass"))
    assert check(pytester, "fork", BASELINE, SHRINK).ret == 0
    assert body(pytester) == ""


def test_a_torn_or_foreign_file_is_a_usage_error_and_stays(suite: pytest.Pytester) -> None:
    missing = check(suite, "touch", BASELINE, SHRINK)
    assert missing.ret == pytest.ExitCode.USAGE_ERROR
    words = "there is no such baseline. Create it with --cuda-fork-baseline-update"
    assert words in missing.stderr.str()
    torn = '["lib.py"]\n"fork: <module'
    (suite.path / "known.toml").write_text(torn)
    result = check(suite, "touch", BASELINE, UPDATE)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert re.search(r"known\.toml:2: is not TOML", result.stderr.str())
    assert_no_crash(result)
    assert (suite.path / "known.toml").read_text() == torn


def test_a_file_that_cannot_be_written_is_known_before_any_test_runs(
    suite: pytest.Pytester,
) -> None:
    result = check(suite, "fork", "--cuda-fork-baseline=no/known.toml", UPDATE)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    told = "ERROR: --cuda-fork-baseline: *no/known.toml: cannot be written: there is no folder *"
    result.stderr.fnmatch_lines([told])
    assert not outcomes(result)


def test_a_child_started_by_exec_knows_the_baseline(suite: pytest.Pytester) -> None:
    (suite.path / "script.py").write_text(LIB + "import os\nif not os.fork(): os._exit(0)\n")
    (suite.path / "test_it.py").write_text(
        module("def test_it():\n    subprocess.run([sys.executable, 'script.py'], check=True)\n")
    )
    assert check(suite, "fork").ret == 1
    assert check(suite, "fork", BASELINE, UPDATE).ret == 0
    assert body(suite).startswith('["script.py"]\n"fork: <module>: ctypes')
    assert check(suite, "fork", BASELINE).ret == 0


def test_the_ledgers_of_shards_are_joined(
    suite: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    for shard, test in (("one", "test_forks"), ("two", "test_child_touches or test_plain")):
        result = check(suite, "fork", BASELINE, UPDATE, "-k", test, f"--cuda-fork-ledger={shard}")
        assert result.ret == 0
        (suite.path / "known.toml").unlink()
    shards = [str(suite.path / name) for name in ("one", "two")]
    known = f"--baseline={suite.path / 'known.toml'}"
    assert main([*shards, known, "--update"]) == 0
    assert "3 forks" not in capsys.readouterr().out
    assert body(suite) == "\n".join(WRITTEN.split("\n")[:3]) + "\n"
    (suite.path / "test_it.py").write_text(
        TESTS.replace("child()", "pass").replace("child(l", "(l")
    )
    for shard, test in (("one", "test_forks"), ("two", "test_child_touches or test_plain")):
        result = check(suite, "fork", BASELINE, "-k", test, f"--cuda-fork-ledger={shard}")
        assert "gone" not in section(result)
    assert main([*shards, known, "--update=shrink"]) == 0
    assert "0 now, 0 added, 2 removed" in capsys.readouterr().out

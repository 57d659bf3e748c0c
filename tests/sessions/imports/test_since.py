"""The audit of a change in sessions and on the command line: what is imported, and what is said."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable

import pytest

from tests.support.documents import read_document
from tests.support.git_repository import GitRepository
from tests.support.imports import TOUCH, XDIST, command_line, needs_xdist, run_audit, write_package

pytestmark = [
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="the audit works on Linux"),
]

FILES = {
    "__init__": "",
    "base": "VALUE = 1",
    "one": "from proj.base import VALUE",
    "two": "from proj.base import VALUE",
    "named": "import importlib\nimportlib.import_module('proj.' + 'base')",
    "table": "import os\nopen(os.path.join(os.path.dirname(__file__), 'table.json')).close()",
    "leaf": "",
}
LOOKS = """
import importlib.util
importlib.invalidate_caches()  # Python lists a folder anew if it has changed meanwhile
importlib.util.find_spec("none")
"""
AUDIT = ("--cuda-fork-imports=proj", "--cuda-fork-imports-since=HEAD")


@pytest.fixture
def proj(pytester: pytest.Pytester) -> GitRepository:
    made = GitRepository(pytester.path)
    pytester.makeconftest("")  # sessions have one: a new module would be a reason to import all
    write_package(pytester.path, "proj", FILES)
    made.write({"proj/table.json": "{}", ".gitignore": "/*\n!/proj\n__pycache__\n"})
    made.commit("begin")
    return made


def names(outcomes: Iterable[str]) -> set[str]:
    return {name.rpartition(".")[2] for name in outcomes}


ALL = names(dict.fromkeys(f"proj.{name}" for name in FILES)) - {"__init__"} | {"proj::proj"}


def test_sessions_import_what_a_change_reaches(
    pytester: pytest.Pytester, proj: GitRepository
) -> None:
    session = run_audit(pytester, *AUDIT)
    assert names(session.outcomes) == ALL
    assert session.result.ret == 0
    assert any("all 7 imports of proj: there is no record" in line for line in session.section())

    session = run_audit(pytester, *AUDIT)
    assert session.outcomes == {}
    assert session.result.ret == 0, "nothing to import is no mistake"
    assert "0 changed files, which 0 of 7 imports of proj can reach" in session.out

    proj.write({"proj/leaf.py": TOUCH})
    session = run_audit(pytester, *AUDIT, "-v")
    assert session.outcomes == {"proj::proj.leaf": "failed"}
    assert session.result.ret == 1
    assert "  proj::proj.leaf: proj/leaf.py" in session.section()
    assert "confirmed in a fresh interpreter: 1 culprit line" in session.section()

    # shared by most: what names it, and what imports by names made at run time
    proj.commit("leaf")
    proj.write({"proj/base.py": "VALUE = 2"})
    session = run_audit(pytester, *AUDIT)
    assert names(session.outcomes) == {"base", "one", "two", "named"}
    assert session.result.ret == 0
    assert any("not clean when they were imported last: proj::proj.leaf (touches)" in line
               for line in session.section())  # fmt: skip

    proj.commit("base", {"proj/table.json": "[]"})
    session = run_audit(pytester, "--cuda-fork-imports=proj", "--cuda-fork-imports-since=HEAD~1")
    assert names(session.outcomes) == {"base", "one", "two", "named", "table"}

    proj.write({"proj/new.py": ""})
    session = run_audit(pytester, *AUDIT)
    assert names(session.outcomes) == ALL | {"new"}
    assert "not known yet, and others may find it by its name: proj::proj.new" in session.out


def test_where_nothing_is_reached_lost_tests_are_still_a_mistake(
    pytester: pytest.Pytester, proj: GitRepository
) -> None:
    pytester.makepyfile(test_other="def test_other(): pass")
    assert run_audit(pytester, *AUDIT).result.ret == 0
    none = pytest.ExitCode.NO_TESTS_COLLECTED
    assert run_audit(pytester, *AUDIT, "-k", "one").result.ret == 0, "the audit is all that runs"
    assert run_audit(pytester, *AUDIT, "test_other.py", "-k", "slip").result.ret == none
    assert run_audit(pytester, *AUDIT, "proj", "-p", "no:cacheprovider").result.ret == none
    ini = "[pytest]\ncuda_fork_imports = proj\ncuda_fork_imports_since = HEAD\n"
    (pytester.path / "pytest.ini").write_text(ini)
    assert run_audit(pytester, "-k", "slip").result.ret == none
    (pytester.path / "test_other.py").unlink()
    assert run_audit(pytester).result.ret == 0, "there are no tests, and that is no mistake"


def test_what_was_not_found_and_is_there_now_is_a_change(
    pytester: pytest.Pytester, proj: GitRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python has compiled all before, into a folder of its own: no source is read then."""
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(pytester.path / "compiled"))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    asks = "from importlib.util import find_spec\nif not find_spec('proj.base'):\n    1 / 0"
    tries = "try:\n    import other.fast\nexcept ImportError:\n    pass"
    proj.write({"other/__init__.py": "", "proj/one.py": asks, "proj/two.py": tries})
    proj.commit("begin again")
    assert pytester.runpython_c("import compileall; compileall.compile_dir('proj')").ret == 0
    assert list(pytester.path.glob("compiled/**/leaf.*.pyc")), "compiled, and not beside it"
    assert command_line(pytester, "proj", "--since=HEAD").ret == 0

    proj.write({"other/fast.py": TOUCH, "proj/leaf.py": "edited = True"})
    found = command_line(pytester, "proj", "--since=HEAD", "-v")
    assert found.ret == 1
    assert "  proj::proj.two: what can be imported from other" in found.outlines
    assert "  proj::proj.leaf: proj/leaf.py" in found.outlines
    found.stdout.fnmatch_lines(["since *which 2 of 7 imports of proj can reach; *"])

    (pytester.path / "proj" / "base.py").unlink()
    found = command_line(pytester, "proj", "--since=HEAD", "-v")
    found.stdout.fnmatch_lines(["*proj.one*ZeroDivisionError*"])


def test_what_a_file_breaks_that_git_ignores_is_imported_until_it_is_clean(
    pytester: pytest.Pytester, proj: GitRepository
) -> None:
    proj.write({"proj/two.py": "from proj.base import VALUE\nimport proj._made"})
    proj.write({".gitignore": "/*\n!/proj\n__pycache__\n_made.py\n", "proj/_made.py": ""})
    proj.commit("begin again")
    assert command_line(pytester, "proj", "--since=HEAD").ret == 0
    proj.write({"proj/_made.py": TOUCH})
    for words in ("since * 2 of 8 imports *", "  imported again until clean: proj::proj._made *"):
        again = command_line(pytester, "proj", "--since=HEAD", "-v")
        assert again.ret == 1, "git tells nothing of the file, and the record knows it by now"
        again.stdout.fnmatch_lines([words, "  proj::proj.two: proj/_made.py"])
    session = run_audit(pytester, *AUDIT, "-k", "not two")
    assert session.outcomes == {"proj::proj._made": "failed"}
    session = run_audit(pytester, *AUDIT)
    assert session.outcomes == {"proj::proj._made": "failed", "proj::proj.two": "failed"}

    proj.write({"proj/_made.py": ""})
    assert command_line(pytester, "proj", "--since=HEAD").ret == 0
    assert run_audit(pytester, *AUDIT).outcomes == {}


def test_a_file_that_git_is_told_not_to_look_at_counts_as_changed(
    pytester: pytest.Pytester, proj: GitRepository
) -> None:
    assert command_line(pytester, "proj", "--since=HEAD").ret == 0
    proj.git("update-index", "--assume-unchanged", "proj/leaf.py")
    proj.write({"proj/leaf.py": TOUCH})
    for _ in range(2):
        again = command_line(pytester, "proj", "--since=HEAD", "-v")
        assert again.ret == 1, "the record knows the file by the second time"
        again.stdout.fnmatch_lines(["since * 1 changed file, *", "  proj::proj.leaf: proj/leaf.py"])


def test_what_lacks_a_module_that_is_gone_is_imported_until_it_is_clean(
    pytester: pytest.Pytester, proj: GitRepository
) -> None:
    """The folder where it was looked for differs from the record only once."""
    proj.write({"other/__init__.py": "", "other/mild.py": ""})
    proj.write({"proj/two.py": f"try:\n    import other.mild\nexcept ImportError:\n    {TOUCH}"})
    proj.commit("begin again")
    assert command_line(pytester, "proj", "--since=HEAD").ret == 0
    (pytester.path / "other" / "mild.py").unlink()
    for _ in range(3):
        assert command_line(pytester, "proj", "--since=HEAD").ret == 1


def test_a_new_file_beside_the_package_changes_nothing_where_modules_are_looked_for(
    pytester: pytest.Pytester, proj: GitRepository
) -> None:
    proj.write({"proj/leaf.py": LOOKS})
    proj.commit("looks for what is not there")
    assert names(run_audit(pytester, *AUDIT).outcomes) == ALL
    proj.write({"notes.txt": ""})
    assert run_audit(pytester, *AUDIT).outcomes == {}


@needs_xdist
def test_workers_of_xdist_agree_and_the_controller_keeps_the_record(
    pytester: pytest.Pytester, proj: GitRepository
) -> None:
    session = run_audit(pytester, *AUDIT, *XDIST, "-n2")
    assert names(session.outcomes) == ALL
    proj.write({"proj/base.py": "VALUE = 2"})
    session = run_audit(pytester, *AUDIT, *XDIST, "-n2")
    assert names(session.outcomes) == {"base", "one", "two", "named"}
    proj.commit("base")
    session = run_audit(pytester, *AUDIT, *XDIST, "-n2")
    assert session.outcomes == {}
    assert session.result.ret == 0


def test_the_command_line_and_pytest_share_the_record(
    pytester: pytest.Pytester, proj: GitRepository
) -> None:
    first = command_line(pytester, "proj", "--since=HEAD")
    assert first.ret == 0
    first.stdout.fnmatch_lines(["since HEAD (*): all 7 imports of proj: there is no record*"])
    proj.write({"proj/leaf.py": TOUCH})
    for _ in range(2):
        again = command_line(pytester, "proj", "--since=HEAD", "--json=audit.json")
        assert again.ret == 1
        again.stdout.fnmatch_lines([
            "proj/leaf.py:1 (module body): 1 module",
            "since HEAD (*): 1 changed file, which 1 of 7 imports of proj can reach; the others *",
            "proj: 1 module: 1 initialize CUDA",
        ])  # fmt: skip
    since = read_document(pytester.path / "audit.json", "audit")["since"]
    assert since["changed"] == ["proj/leaf.py"]
    assert since["chosen"] == {"proj": {"imports": 1, "of": 7, "why_all": ""}}
    session = run_audit(pytester, *AUDIT)
    assert session.outcomes == {"proj::proj.leaf": "failed"}


def test_what_cannot_be_is_an_error_in_words(
    pytester: pytest.Pytester, proj: GitRepository
) -> None:
    session = run_audit(pytester, "--cuda-fork-imports=proj", "--cuda-fork-imports-since=no-such")
    assert session.result.ret == pytest.ExitCode.USAGE_ERROR
    session.result.stderr.fnmatch_lines([
        "ERROR: --cuda-fork-imports-since: 'no-such' is no commit of the repository *"
    ])  # fmt: skip
    session = run_audit(pytester, "--cuda-fork-imports-since=HEAD")
    assert session.result.ret == pytest.ExitCode.USAGE_ERROR
    session.result.stderr.fnmatch_lines(["*since: no package is audited: name it with *=PKG (*"])

"""The reported bugs as programs: the lines that a checked session names are named here, too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.specimens.catalog import CATALOG
from tests.specimens.run import skip_where_impossible
from tests.specimens.specimen import Specimen
from tests.support.programs import environment, watched

pytestmark = [
    pytest.mark.slow,
    pytest.mark.fresh_interpreter("programs of their own are what this is about"),
]

SCRIPTS = {
    "class_body": "from test_spec_decode import *\n"
    "test_ngram_drafts_what_followed_the_last_occurrence()",
    "server_script": "from test_api import *; test_a_transcript_is_punctuated()",
    "kv_sharing": "from test_kv_cache_sharing import *\n"
    "test_the_second_engine_finds_the_first_ones_cache()",
}
SUITE = "init_reexport"


def run(name: str, form: str, folder: Path, *words: str, device: str = "") -> tuple[int, str]:
    """Run a form of a specimen as a program; return its exit status and what was told."""
    specimen = next(one for one in CATALOG if one.name == name)
    skip_where_impossible(specimen)
    specimen.form(form).copy_to(folder)
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    options = ["--fail", f"--device={device or specimen.device}", "--report=told.txt"]
    if specimen.level == "fork":
        options.append("--guard")
    env = environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    done = watched(*options, *words, cwd=folder, env=env)
    told = (folder / "told.txt").read_text(encoding="utf-8")
    if form == "buggy":
        _assert_named(specimen, told)
    return done.returncode, told


def _assert_named(specimen: Specimen, told: str) -> None:
    """Check that the story is the one of the session, with the same line."""
    assert specimen.expects_failure in told, told
    lines = "|".join(re.escape(line) for line in specimen.named_lines)
    assert re.search(rf"({lines})(?!\d)", told), told


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script(name: str, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(f"if __name__ == '__main__':\n    exec({SCRIPTS[name]!r})\n")
    status, told = run(name, "buggy", tmp_path, "main.py")
    assert status == 1, told
    if name != "kv_sharing":  # the same repair as that of the first one, and torch to import
        status, told = run(name, "fixed", tmp_path, "main.py")
        assert status == 0, told


def test_a_suite(tmp_path: Path) -> None:
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
    status, told = run(SUITE, "buggy", tmp_path, *words)
    assert status == 1, told
    status, told = run(SUITE, "fixed", tmp_path, *words)
    assert status == 0, told

"""The baseline file: what it accepts, what it asks to remove; it reads as it was written."""

from __future__ import annotations

import json
import os
import stat
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.baseline.file import BaselineError
from pytest_cudafork.compat import unpatched
from pytest_cudafork.imports.audit.baseline import (
    SHELL_UPDATE_OPTION,
    Baseline,
    Entry,
    entry_of,
)
from pytest_cudafork.imports.values.records import ImportRecord, ImportVerdict
from pytest_cudafork.observe.story.touch import Touch

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SITE = "/venv/lib/python3.11/site-packages"
NOT_LEARNED = (
    *(
        ImportVerdict.NOT_IMPORTABLE,
        ImportVerdict.NOT_OBSERVABLE,
        ImportVerdict.CRASHED,
        ImportVerdict.TIMED_OUT,
    ),
)


def record(
    module: str,
    verdict: ImportVerdict = ImportVerdict.TOUCHES,
    without: str = "",
    file: str = f"{SITE}/vllm/flash.py",
    line: int = 175,
) -> ImportRecord:
    stack = [[file, line, "<module>", 0]] if file else []
    touch = Touch.from_record({"id": "1", "pid": 1, "t": 1, "entry": "cuInit", "stack": stack})
    return ImportRecord(
        module=module,
        package=module.partition(".")[0],
        verdict=verdict,
        without=without,
        touches=(touch,) if verdict.touched else (),
    )


FULL = Baseline(
    [
        Entry("vllm.v1.flash", "vllm/v1/flash.py:175"),
        Entry("vllm.attention", "vllm/attention/__init__.py:2"),
        Entry("vllm", "vllm/__init__.py:1"),
        Entry("vllm.quant", "vllm/quant.py:9", "torchao"),
        Entry("vllm.quant", "vllm/quant.py:3", "cuda.tile+cutlass"),
        Entry("apex.amp", "apex/amp.py:5"),
    ]
)
BODY = """\
[apex]
"apex.amp" = "apex/amp.py:5"

[vllm]
vllm = "vllm/__init__.py:1"
"vllm.attention" = "vllm/attention/__init__.py:2"
"vllm.v1.flash" = "vllm/v1/flash.py:175"

["vllm without cuda.tile+cutlass"]
"vllm.quant" = "vllm/quant.py:3"

["vllm without torchao"]
"vllm.quant" = "vllm/quant.py:9"
"""


def test_the_file_is_sorted_with_a_module_on_each_line() -> None:
    head, _, body = FULL.text().partition("\n\n")
    assert all(line.startswith("# ") for line in head.splitlines())
    assert "--cuda-fork-imports-update to the options of pytest" in head
    assert "--update to those of `python -m pytest_cudafork imports`" in head
    assert body == BODY


def test_a_file_reads_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "baseline.toml"
    FULL.write(path)
    assert Baseline.read(path) == FULL
    assert Baseline.read(str(path)).entries == FULL.entries
    assert hash(Baseline.read(path)) == hash(FULL)
    assert Baseline(FULL.entries[1:]) != FULL


def test_entries_are_the_same_after_a_journey_as_plain_data() -> None:
    baseline = Baseline([Entry("a.b", "a/b.py:1"), Entry("a.b", "no Python stack", "lib")])
    assert Baseline.from_plain(json.loads(json.dumps(baseline.to_plain()))) == baseline


def test_an_empty_baseline_is_a_file_too(tmp_path: Path) -> None:
    Baseline().write(tmp_path / "empty.toml")
    assert Baseline.read(tmp_path / "empty.toml").entries == ()


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PARTS = st.sampled_from(["vllm", "without", "a", "b", "C3", "_x", "été", "模块", "ns"])
ENTRIES = st.builds(
    Entry,
    module=st.lists(PARTS, min_size=1, max_size=4).map(".".join),
    culprit=TEXT,
    without=st.one_of(st.just(""), st.lists(PARTS, min_size=1, max_size=3).map("+".join)),
)


@pytest.mark.slow
@given(st.lists(ENTRIES, max_size=12))
def test_whatever_is_written_is_toml_that_reads_back_the_same(entries: list[Entry]) -> None:
    baseline = Baseline(entries)
    tables = tomllib.loads(baseline.text())
    assert sum(map(len, tables.values())) == len(baseline.entries)
    lines = [line for line in baseline.text().split("\n") if line and line[0] not in "#["]
    assert len(lines) == len(baseline.entries)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "baseline.toml")
        baseline.write(path)
        again = Baseline.read(path)
        assert again == baseline
        assert again.text().encode() == path.read_bytes()


@pytest.mark.slow
@given(st.lists(ENTRIES, unique_by=lambda entry: (entry.module, entry.without)), st.data())
def test_the_order_of_entries_plays_no_part_and_one_entry_is_one_line(
    entries: list[Entry], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(entries))
    assert Baseline(entries).text() == Baseline(shuffled).text()
    if entries:
        before = Baseline(entries[1:]).text().split("\n")
        after = Baseline(entries).text().split("\n")
        # Its line; a table and the line between tables where it is the first in its table.
        assert len(after) - len(before) in (1, 2, 3)
        assert set(before) <= set(after)


def test_a_file_name_of_any_bytes_can_be_written(tmp_path: Path) -> None:
    odd = os.fsdecode(b"/src/\xff.py")
    path = tmp_path / "baseline.toml"
    Baseline().updated([record("pkg.odd", file=odd)]).write(path)
    assert [entry.culprit for entry in Baseline.read(path).entries] == [r"/src/\udcff.py:175"]


def test_a_touch_is_accepted_by_module_and_hidden_library_wherever_its_line_is() -> None:
    assert FULL.accepts(record("vllm.attention", line=999, file="/elsewhere.py"))
    assert FULL.accepts(record("vllm.attention", ImportVerdict.TOUCHES_THEN_FAILS))
    assert FULL.accepts(record("vllm.quant", without="torchao"))
    assert not FULL.accepts(record("vllm.quant"))
    assert not FULL.accepts(record("vllm.quant", without="bitsandbytes"))
    assert not FULL.accepts(record("vllm.attention", without="torchao"))
    assert not FULL.accepts(record("vllm.new"))


@pytest.mark.parametrize("verdict", [ImportVerdict.CLEAN, *NOT_LEARNED])
def test_only_a_touch_is_accepted(verdict: ImportVerdict) -> None:
    assert not FULL.accepts(record("vllm.attention", verdict))


def test_an_entry_is_stale_when_its_module_is_clean() -> None:
    records = [
        record("vllm.attention", ImportVerdict.CLEAN),
        record("vllm.quant", ImportVerdict.CLEAN, "torchao"),
        record("vllm.v1.flash"),
    ]
    assert FULL.stale(records) == [
        Entry("vllm.attention", "vllm/attention/__init__.py:2"),
        Entry("vllm.quant", "vllm/quant.py:9", "torchao"),
    ]


@pytest.mark.parametrize("verdict", NOT_LEARNED)
def test_an_entry_is_not_stale_when_nothing_was_learned(verdict: ImportVerdict) -> None:
    records = [record("vllm.attention", verdict)]
    assert FULL.stale(records) == []
    assert FULL.updated(records) == FULL


def test_an_entry_is_stale_when_its_package_was_searched_and_has_no_such_module() -> None:
    assert FULL.stale([]) == []
    gone = FULL.stale([], {"vllm": ["vllm", "vllm.v1", "vllm.v1.flash", "vllm.quant"]})
    assert [entry.module for entry in gone] == ["vllm.attention"]
    assert FULL.stale([], {"vllm.v1": ["vllm.v1", "vllm.v1.flash"], "vll": []}) == []
    assert FULL.stale([], {"vllm.v1": [], "vllm.attention": ["vllm.attention"]}) == [
        Entry("vllm.v1.flash", "vllm/v1/flash.py:175")
    ]


def test_the_update_takes_what_touches_today_and_keeps_what_was_not_audited() -> None:
    records = [
        record("vllm.attention", ImportVerdict.CLEAN),
        record("vllm.new", line=12),
        record("vllm.v1.flash", ImportVerdict.TOUCHES_THEN_FAILS, line=180),
        record("vllm.quant", without="bitsandbytes"),
        record("vllm.other", ImportVerdict.CRASHED),
    ]
    found = {"vllm": ["vllm.attention", "vllm.new", "vllm.v1.flash", "vllm.quant"]}
    updated = FULL.updated(records, found)
    assert updated.entries == (
        Entry("apex.amp", "apex/amp.py:5"),
        Entry("vllm.new", "vllm/flash.py:12"),
        Entry("vllm.v1.flash", "vllm/flash.py:180"),
        Entry("vllm.quant", "vllm/flash.py:175", "bitsandbytes"),
        Entry("vllm.quant", "vllm/quant.py:3", "cuda.tile+cutlass"),
        Entry("vllm.quant", "vllm/quant.py:9", "torchao"),
    )
    assert updated.stale(records, found) == []
    assert all(updated.accepts(each) for each in records if each.verdict.touched)


MODULES = st.sampled_from(["a", "a.b", "a.c", "b", "b.x"])
RECORDS = st.lists(
    st.builds(
        record,
        MODULES,
        st.sampled_from(ImportVerdict),
        st.sampled_from(["", "lib"]),
        line=st.just(1),
    ),
    unique_by=lambda each: (each.module, each.without),
)
HELD = st.lists(st.builds(Entry, MODULES, st.just("f:1"), st.sampled_from(["", "lib"])))


@pytest.mark.slow
@given(HELD, RECORDS)
def test_after_an_update_the_same_audit_passes_and_a_second_update_changes_nothing(
    held: list[Entry], records: list[ImportRecord]
) -> None:
    before = Baseline(held)
    after = before.updated(records)
    assert all(after.accepts(each) for each in records if each.verdict.touched)
    assert after.stale(records) == []
    assert after.updated(records) == after
    audited = {(each.module, each.without) for each in records}
    untouched = {each for each in before.entries if (each.module, each.without) not in audited}
    assert untouched <= set(after.entries)


def test_a_culprit_is_shown_relative_to_the_base() -> None:
    inside = record("pkg.m", file="/repo/src/pkg/m.py")
    assert entry_of(inside, "/repo") == Entry("pkg.m", "src/pkg/m.py:175")
    assert entry_of(record("pkg.m"), "/repo").culprit == "vllm/flash.py:175"
    assert entry_of(record("pkg.m", file="")).culprit == "no Python stack"
    assert Baseline().updated([inside], base="/repo").entries[0].culprit == "src/pkg/m.py:175"


def test_a_missing_file_says_how_to_create_it(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match=r"base\.toml: .*--cuda-fork-imports-update"):
        Baseline.read(tmp_path / "base.toml")
    with pytest.raises(BaselineError, match=r"base\.toml: .* Create it with --update\.$"):
        Baseline.read(tmp_path / "base.toml", SHELL_UPDATE_OPTION)


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match="cannot be read: Is a directory"):
        Baseline.read(tmp_path)
    with pytest.raises(BaselineError, match="cannot be written: No such file"):
        Baseline().write(tmp_path / "no" / "such" / "folder.toml")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('# a\n[vllm]\n"vllm.a" = \n', 3, "is not TOML"),
        ('[vllm]\n"vllm.a" = "x"\n"vllm.a" = "y"\n', 3, "is not TOML"),
        ('[vllm]\n<<<<<<< HEAD\n"vllm.a" = "x"\n', 2, "is not TOML"),
        ('[vllm]\n"vllm.a" = "x', 2, "is not TOML"),
        ("[vllm]\nvllm.a = 'x'\n", 1, "'vllm' wants text"),
        ("[vllm]\n\n[vllm.without.torchao]\n", 3, "'without' wants text"),
        ('\n[vllm]\n"vllm.a" = 3\n', 3, "'vllm.a' wants text"),
        ('\n"vllm.a" = "x"\n[vllm]\n', 2, "'vllm.a' stands outside a table"),
        ('[vllm]\n"vllm.a" = "x"\n"other.b" = "x"\n', 3, "'other.b' is no module of 'vllm'"),
        ('[vllm]\n["vllm without "]\n"vllm.a" = "x"\n', 2, "names no library"),
        ('[[vllm]]\n"vllm.a" = "x"\n', 1, "'vllm' stands outside a table"),
    ],
)
def test_a_malformed_file_is_told_with_its_line(
    tmp_path: Path, text: str, line: int, words: str
) -> None:
    path = tmp_path / "base.toml"
    path.write_text(text)
    with pytest.raises(BaselineError) as told:
        Baseline.read(path)
    assert str(told.value).startswith(f"{path}:{line}: ")
    assert words in str(told.value)


def test_bytes_that_are_no_text_are_told_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "base.toml"
    path.write_bytes(b'[vllm]\n"vllm.a" = "\xff"\n')
    with pytest.raises(BaselineError, match=r"base\.toml:2: is not UTF-8"):
        Baseline.read(path)


@given(st.binary(max_size=60))
def test_any_file_is_read_or_refused_with_words(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "base.toml")
        path.write_bytes(data)
        try:
            assert Baseline.read(path).text().startswith("# ")
        except BaselineError as error:
            told = str(error)
        else:
            told = f"{path}:"
        assert told.startswith(f"{path}:")


def test_a_write_that_fails_leaves_the_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "base.toml"
    FULL.write(path)

    def refuse(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(unpatched.os, "replace", refuse)
    with pytest.raises(BaselineError, match="No space left"):
        Baseline().write(path)
    assert Baseline.read(path) == FULL
    assert list(tmp_path.iterdir()) == [path]


def test_permissions_and_a_link_survive_a_write(tmp_path: Path) -> None:
    path, link = tmp_path / "base.toml", tmp_path / "link.toml"
    fresh = tmp_path / "fresh"
    fresh.touch()
    Baseline().write(path)
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(fresh.stat().st_mode)
    path.chmod(0o640)
    link.symlink_to(path.name)
    FULL.write(link)
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert Baseline.read(path) == FULL

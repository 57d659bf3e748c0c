"""The picture: one page that needs no network, and whose data cannot break out of it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pytest_cudafork.imports.graph
from pytest_cudafork.imports.graph.cuts import find_cuts
from pytest_cudafork.imports.graph.import_graph import ImportGraph
from pytest_cudafork.imports.graph.picture import (
    _quoted,
    embedded,
    next_hops,
    write_dot,
    write_html,
)
from pytest_cudafork.imports.values.records import ImportRecord, ImportVerdict
from tests.support.full_disk import full_disk
from tests.support.imports_graph import audit, touch_with

ASSETS = Path(pytest_cudafork.imports.graph.__file__).parent / "assets"
TOUCH = "import cuda_stub\ncuda_stub.touch()"
FILES = {
    "lib.py": TOUCH,
    "pkg/__init__.py": "",
    "pkg/gate.py": "import lib",
    "pkg/sub/__init__.py": "import pkg.gate",
    "pkg/sub/user.py": "",
    "pkg/other.py": "import pkg.plain",
    "pkg/plain.py": "",
    "pkg/broken.py": "import not_there",
}
HOSTILE = "</script><script>alert(1)</script><!-- \u2028 \u202e ' \" \\ & @@PAGE@@"


class Page(HTMLParser):
    """Collects the elements of a page, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script":
            self.scripts[-1] += data

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.scripts[0])
        return found


def page_of(tmp_path: Path, graph: ImportGraph, records: list[ImportRecord]) -> Page:
    path = tmp_path / "picture.html"
    write_html(path, graph, records, find_cuts(graph, records), str(tmp_path))
    return Page(path.read_text(encoding="utf-8"))


def hostile_records() -> list[ImportRecord]:
    machinery = ["<frozen importlib._bootstrap>", 1, "_call", 3]
    touch = touch_with([[f"/src/{HOSTILE}.py", 3, "<module>", 0], machinery])
    return [
        ImportRecord(
            f"pkg.{HOSTILE}", "pkg", ImportVerdict.TOUCHES, touches=(touch,), reason=HOSTILE
        ),
        ImportRecord("pkg.\udcff", HOSTILE, ImportVerdict.CRASHED, reason="\udcff\0"),
    ]


def test_the_page_tells_of_every_module_and_culprit(tmp_path: Path) -> None:
    graph, records = audit(tmp_path, FILES)
    data = page_of(tmp_path, graph, records).data
    states = {module["name"]: module["state"] for module in data["modules"]}
    assert states == {
        "pkg": "clean",
        "pkg.gate": "leads",
        "pkg.sub": "leads",
        "pkg.sub.user": "leads",
        "pkg.other": "clean",
        "pkg.plain": "clean",
        "pkg.broken": "other",
        "lib": "holds",
    }
    names = [module["name"] for module in data["modules"]]
    (culprit,) = data["culprits"]
    assert culprit["title"] == "lib.py:2 (module body)"
    assert [names[index] for index in culprit["sinks"]] == ["lib"]
    assert culprit["lines"][-1].startswith("make `pkg/gate.py:1`")
    assert [(names[i], names[j], where) for i, j, where in culprit["cuts"]] == [
        ("pkg.gate", "lib", "pkg/gate.py:1")
    ]
    assert {(names[i], names[j]) for i, j, _ in culprit["hops"]} == {
        ("pkg.sub.user", "pkg.sub"),
        ("pkg.sub", "pkg.gate"),
        ("pkg.gate", "lib"),
    }
    assert ("pkg.other", "pkg.plain") in {(names[i], names[j]) for i, j, _ in data["edges"]}
    assert data["modules"][names.index("pkg.broken")]["reason"] == "ModuleNotFoundError"
    assert data["modules"][names.index("pkg.sub")]["path"] == "pkg/sub/__init__.py"


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    page = page_of(tmp_path, *audit(tmp_path, FILES))
    assert not [attrs for _, attrs in page.tags if {"src", "href"} & set(attrs)]
    policy = next(a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy
    assert not any("sourceMappingURL" in script for script in page.scripts)
    assert len(page.scripts) == 3
    assert page.scripts[1].count("Permission is hereby granted") == 2


def test_names_and_messages_cannot_break_out_of_the_page(tmp_path: Path) -> None:
    harmless = page_of(tmp_path, *audit(tmp_path, FILES))
    records = hostile_records()
    page = page_of(tmp_path, ImportGraph({}, {}, {}), records)
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in harmless.tags]
    assert page.scripts[1:] == harmless.scripts[1:]
    found = {module["name"]: module["reason"] for module in page.data["modules"]}
    assert found == {record.module: record.reason for record in records}
    written = (tmp_path / "picture.html").read_text(encoding="utf-8")
    assert not {"\u2028", "\u202e"} & set(written), "its title cannot be read backwards either"


@given(st.recursive(st.text(), lambda inner: st.lists(inner, max_size=3), max_leaves=5))
def testembedded_data_is_the_same_json_without_marks(value: Any) -> None:
    text = embedded({"value": value})
    assert not set("<>&") & set(text)
    assert text.isascii()
    assert json.loads(text) == {"value": value}


def test_the_page_of_a_clean_package_has_no_culprit(tmp_path: Path) -> None:
    graph, records = audit(tmp_path, {"pkg/__init__.py": ""})
    data = page_of(tmp_path, graph, records).data
    assert data["culprits"] == []
    assert page_of(tmp_path, ImportGraph({}, {}, {}), []).data["modules"] == []


def test_each_module_leaves_by_one_edge_only(tmp_path: Path) -> None:
    files = {
        "pkg/__init__.py": "",
        "pkg/hot.py": TOUCH,
        **{f"pkg/m{index}.py": "import pkg.hot\n" for index in range(4)},
        "pkg/user.py": "\n".join(f"import pkg.m{index}" for index in range(4)),
    }
    graph, records = audit(tmp_path, files)
    (cuts,) = find_cuts(graph, records)
    hops = next_hops(graph, cuts)
    assert sorted(edge.importer for edge in hops) == [
        "pkg.m0",
        "pkg.m1",
        "pkg.m2",
        "pkg.m3",
        "pkg.user",
    ]
    assert {edge.importer for edge in hops} | {"pkg.hot"} == set(cuts.modules)


def test_the_text_for_dot_marks_culprits_and_the_import_to_make_lazy(tmp_path: Path) -> None:
    graph, records = audit(tmp_path, FILES)
    path = tmp_path / "picture.dot"
    write_dot(path, graph, records, find_cuts(graph, records), str(tmp_path))
    text = path.read_text()
    assert '"pkg.sub" -> "pkg.gate" [tooltip="pkg/sub/__init__.py:1"];' in text
    assert re.search(r'"pkg.gate" -> "lib" \[label="pkg/gate.py:1".*style=dashed', text)
    assert '"lib" -> "culprit 1";' in text
    assert "pkg.plain" not in text


@pytest.mark.parametrize("write", [write_dot, write_html])
def test_a_full_disk_leaves_the_picture_of_before(write: Any, tmp_path: Path) -> None:
    path = tmp_path / "picture"
    path.write_text("of yesterday")
    with full_disk(100), pytest.raises(OSError, match="File too large") as failed:
        write(str(path), ImportGraph({}, {}, {}), [], [])
    assert failed.value.filename == str(path)
    assert path.read_text() == "of yesterday"
    assert os.listdir(tmp_path) == ["picture"]


def test_dot_accepts_the_text(tmp_path: Path) -> None:
    dot = shutil.which("dot")
    if dot is None:
        pytest.skip("dot is not installed")
    path = tmp_path / "picture.dot"
    records = hostile_records()
    graph = ImportGraph({}, {}, {})
    write_dot(path, graph, records, find_cuts(graph, records))
    subprocess.run([dot, "-Tsvg", str(path)], check=True, capture_output=True, timeout=240)
    graph, records = audit(tmp_path, FILES)
    write_dot(path, graph, records, find_cuts(graph, records))
    done = subprocess.run(
        [dot, "-Tsvg", str(path)], check=True, capture_output=True, text=True, timeout=240
    )
    assert not done.stderr
    assert "pkg.gate" in done.stdout


@given(st.text())
def test_a_string_of_dot_ends_where_it_should(text: str) -> None:
    quoted = _quoted(text)
    assert re.fullmatch(r'"(?:[^"\\]|\\.)*"', quoted, re.S)
    assert "\n" not in quoted


def test_the_copied_libraries_are_what_the_list_says() -> None:
    listed = re.findall(
        r"^\| `([\w.]+)` .*\| MIT, `([\w.]+)` \| `([0-9a-f]{64})` \|$",
        (ASSETS / "VENDORED.md").read_text(),
        re.M,
    )
    assert {name for name, _, _ in listed} == {path.name for path in ASSETS.glob("*.min.js")}
    for name, licence, digest in listed:
        content = (ASSETS / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest
        assert len(content) < 1_000_000
        assert b"</script" not in content.lower()
        assert b"<!--" not in content
        assert "Permission is hereby granted" in (ASSETS / licence).read_text()

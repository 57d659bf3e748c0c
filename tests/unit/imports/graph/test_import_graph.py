"""The graph of a package's imports: what is written, and what is known to have happened."""

from __future__ import annotations

import sysconfig
import time
from pathlib import Path

import pytest

from pytest_cudafork.imports.graph.import_graph import EdgeKind, ImportGraph, build_graph
from pytest_cudafork.imports.values.records import ImportRecord, ImportVerdict
from pytest_cudafork.imports.values.targets import FoundModule
from tests.support import imports_graph
from tests.support.imports_graph import (
    audit,
    import_all,
    touch_with,
    write_package,
)


def targets(graph: ImportGraph, importer: str, kind: EdgeKind = EdgeKind.IMPORT) -> set[str]:
    return {
        edge.imported
        for edge in graph.edges.values()
        if edge.importer == importer and edge.kind is kind
    }


def test_a_name_from_a_package_is_a_submodule_only_if_there_is_one(tmp_path: Path) -> None:
    modules = write_package(
        tmp_path,
        {"pkg/__init__.py": "x = 1", "pkg/sub.py": "", "pkg/user.py": "from pkg import x, sub"},
    )
    graph = build_graph(modules)
    assert targets(graph, "pkg.user") == {"pkg.sub"}
    assert graph.edges["pkg.user", "pkg.sub"].line == 1
    assert targets(graph, "pkg.user", EdgeKind.PARENT) == {"pkg"}


def test_every_import_runs_the_parents_which_nobody_can_make_lazy(tmp_path: Path) -> None:
    graph = build_graph(write_package(tmp_path, {"pkg/a/b.py": "import ext.c.d"}))
    parents = {pair for pair, edge in graph.edges.items() if edge.kind is EdgeKind.PARENT}
    assert parents == {
        ("pkg.a.b", "pkg.a"),
        ("pkg.a", "pkg"),
        ("ext.c.d", "ext.c"),
        ("ext.c", "ext"),
    }
    assert not any(graph.can_be_lazy(*pair) for pair in parents)
    assert graph.can_be_lazy("pkg.a.b", "ext.c.d")
    assert graph.nodes == {"pkg", "pkg.a", "pkg.a.b", "ext", "ext.c", "ext.c.d"}


def test_what_cannot_be_read_has_no_edges(tmp_path: Path) -> None:
    modules = write_package(
        tmp_path,
        {"pkg/__init__.py": "", "pkg/torn.py": "import a\nimport (", "pkg/good.py": "import b"},
    )
    (tmp_path / "pkg" / "binary.py").write_bytes(b"import c\n\0\xff")
    graph = build_graph(
        [
            *modules,
            FoundModule("pkg.gone", str(tmp_path / "pkg/gone.py")),
            FoundModule("pkg.odd", "a\0b.py"),
            FoundModule("pkg.binary", str(tmp_path / "pkg/binary.py")),
            FoundModule("pkg.native", str(tmp_path / "pkg/native.so")),
            FoundModule("pkg.space", ""),
        ]
    )
    for name in ("torn", "gone", "odd", "binary", "native", "space"):
        assert f"pkg.{name}" in graph.modules
        assert targets(graph, f"pkg.{name}") == set()
    assert targets(graph, "pkg.good") == {"b"}


def test_an_import_that_did_not_take_place_is_left_out(tmp_path: Path) -> None:
    modules = write_package(
        tmp_path,
        {
            "pkg/__init__.py": "",
            "pkg/hot.py": "import cuda_stub\ncuda_stub.touch()",
            "pkg/cold.py": "",
            "pkg/user.py": "if len('x') > 1:\n    import pkg.hot\nimport pkg.cold\nimport json",
        },
    )
    assert targets(build_graph(modules), "pkg.user") == {"pkg.hot", "pkg.cold", "json"}
    graph = build_graph(modules, import_all(tmp_path, modules))
    assert targets(graph, "pkg.user") == {"pkg.cold", "json"}


def test_a_clean_module_that_was_loaded_before_is_not_taken_for_missing() -> None:
    def record(name: str, *loaded: str) -> ImportRecord:
        return ImportRecord(name, "pkg", ImportVerdict.CLEAN, loaded=loaded)

    user = FoundModule("pkg.user", str(imports_graph.__file__))
    graph = build_graph([user, FoundModule("pkg.cold", "")], [record("pkg.user", "pkg.user")])
    assert ("pkg.user", "json") in graph.edges
    others = [record("pkg.user", "pkg.user"), record("pkg.cold", "pkg.cold", "json")]
    graph = build_graph([user, FoundModule("pkg.cold", "")], others)
    assert ("pkg.user", "json") not in graph.edges


def test_what_only_a_stack_knows_is_added(tmp_path: Path) -> None:
    graph, _ = audit(
        tmp_path,
        {
            "pkg/__init__.py": "def __getattr__(name):\n    import importlib\n"
            "    return importlib.import_module('pkg.' + name)",
            "pkg/hot.py": "import cuda_stub\nclass A:\n    cuda_stub.touch()",
            "pkg/by_name.py": "import importlib\n\nimportlib.import_module('pkg.hot')",
            "pkg/by_helper.py": "from pkg.helper import load\n\n\nload()",
            "pkg/helper.py": "def load():\n    import pkg.hot",
            "pkg/plain.py": "import pkg.hot",
        },
    )
    assert targets(graph, "pkg.by_name", EdgeKind.SEEN) == {"pkg.hot"}
    assert graph.edges["pkg.by_name", "pkg.hot"].line == 3
    assert graph.edges["pkg.by_helper", "pkg.hot"].line == 4
    assert targets(graph, "pkg.plain", EdgeKind.SEEN) == set()
    assert [body.module for body in graph.trails["pkg.plain"]] == ["pkg.plain", "pkg.hot"]
    assert graph.trails["pkg.plain"][-1].line == 3


def test_a_line_that_runs_a_parent_on_its_way_explains_the_stack(tmp_path: Path) -> None:
    graph, _ = audit(
        tmp_path,
        {
            "pkg/__init__.py": "",
            "pkg/a/__init__.py": "import cuda_stub\ncuda_stub.touch()",
            "pkg/a/b.py": "",
            "pkg/user.py": "import pkg.a.b",
        },
    )
    assert targets(graph, "pkg.user") == {"pkg.a.b"}
    assert targets(graph, "pkg.user", EdgeKind.SEEN) == set()


def test_an_extension_module_imports_what_the_stack_begins_with() -> None:
    machinery = ["<frozen importlib._bootstrap>", 241, "_call_with_frames_removed", 3]
    hot = ["/site/pkg/hot.py", 2, "<module>", 0]
    touch = touch_with([hot, machinery])
    record = ImportRecord("pkg.native", "pkg", ImportVerdict.TOUCHES, touches=(touch,))
    modules = [
        FoundModule("pkg.native", "/site/pkg/native.so"),
        FoundModule("pkg.hot", "/site/pkg/hot.py"),
    ]
    graph = build_graph(modules, [record])
    assert graph.edges["pkg.native", "pkg.hot"].kind is EdgeKind.SEEN
    assert graph.edges["pkg.native", "pkg.hot"].line == 0
    cut_off = ImportRecord("pkg.other", "pkg", ImportVerdict.TOUCHES, touches=(touch,))
    modules.append(FoundModule("pkg.other", "/site/pkg/other.py"))
    assert ("pkg.other", "pkg.hot") not in build_graph(modules, [cut_off]).edges


@pytest.mark.slow
def test_a_thousand_modules_take_seconds() -> None:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    modules = [
        FoundModule(f"pkg.m{index}", str(files[index % len(files)])) for index in range(1000)
    ]
    start = time.process_time()  # other processes do not count
    build_graph(modules)
    assert time.process_time() - start < 60  # about 2 on an idle machine

"""Which importer to change: exact numbers, real chains, and words."""

from __future__ import annotations

import dataclasses
import itertools
import random
import time
from collections.abc import Collection, Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.imports.graph import reach
from pytest_cudafork.imports.graph.cuts import CulpritCuts, cut_lines, find_cuts
from pytest_cudafork.imports.graph.import_graph import Edge, EdgeKind, ImportGraph
from pytest_cudafork.imports.graph.trails import Body
from pytest_cudafork.imports.values.records import ImportRecord, ImportVerdict
from tests.support.imports_graph import audit, touch_with
from tests.support.reaching import Graph, graphs, node_names, pairs_of, reaching, some_nodes

TOUCH = "import cuda_stub\ncuda_stub.touch()"


@given(graphs, some_nodes, st.sets(node_names, min_size=1), st.sets(node_names))
def test_the_advice_on_any_graph_is_the_best_by_brute_force(
    links: Graph, sinks: set[str], touching: set[str], inside: set[str]
) -> None:
    touching = {"r." + name for name in touching}
    named = {"r." + start: ["r." + end for end in ends] for start, ends in links.items()}
    graph = made(
        pairs_of(named), {"r." + name for name in inside}, touching, {"r." + s for s in sinks}
    )
    goals = {"r." + s for s in sinks}
    (cuts,) = find_cuts(graph, made_records(touching))
    if set(cuts.sinks) != goals:
        return  # no touching module had a trail
    before = reaching(named, goals)
    frees = {
        pair: len((before - reaching(named, goals, {pair})) & touching)
        for pair in pairs_of(named)
        if graph.can_be_lazy(*pair)
    }
    most = max(frees.values(), default=0)
    assert (cuts.lazy.frees if cuts.lazy else 0) == most
    if cuts.together is not None:
        pairs = {edge.pair for edge in cuts.together.edges}
        assert 2 <= len(pairs) <= 5
        assert all(graph.can_be_lazy(*pair) for pair in pairs)
        left = reaching(named, goals, pairs)
        assert cuts.together.frees == len((before - left) & touching) > 0
        assert cuts.together.frees / len(pairs) >= most


def made(
    pairs: Iterable[reach.Pair],
    inside: Iterable[str],
    touching: Iterable[str],
    sinks: Collection[str],
) -> ImportGraph:
    """A graph with the edges and sinks given; the touching modules' trails end at the sinks."""
    ends = itertools.cycle(sorted(sinks))
    return ImportGraph(
        modules={name: f"/src/{name}.py" for name in inside},
        edges={
            pair: Edge(*pair, EdgeKind.IMPORT, f"/src/{pair[0]}.py", (1,)) for pair in set(pairs)
        },
        trails={name: (Body(next(ends), "", 1),) for name in sorted(touching)},
    )


def made_records(touching: Iterable[str]) -> list[ImportRecord]:
    touch = touch_with(
        [["/x.py", 7, "<module>", 0], ["<frozen importlib._bootstrap>", 1, "_call", 3]]
    )
    return [
        ImportRecord(name, "r", ImportVerdict.TOUCHES, touches=(touch,))
        for name in sorted(touching)
    ]


def only(tmp_path: Path, files: dict[str, str]) -> CulpritCuts:
    (cuts,) = find_cuts(*audit(tmp_path, files))
    return cuts


def told(cuts: CulpritCuts, tmp_path: Path) -> list[str]:
    return [line.strip() for line in cut_lines(cuts, str(tmp_path))]


def test_the_too_wide_import_is_named_with_what_it_frees(tmp_path: Path) -> None:
    cuts = only(
        tmp_path,
        {
            "pkg/__init__.py": "",
            "pkg/core.py": "import pkg.ops.plain",
            "pkg/worker.py": "from pkg import core",
            "pkg/ops/__init__.py": "\nfrom .flash import x",
            "pkg/ops/plain.py": "",
            "pkg/ops/flash.py": "import cuda_stub\nx = 1\nclass A:\n    cuda_stub.touch()",
        },
    )
    assert cuts.modules == ("pkg.core", "pkg.ops", "pkg.ops.flash", "pkg.ops.plain", "pkg.worker")
    assert cuts.sinks == ("pkg.ops.flash",)
    assert told(cuts, tmp_path) == [
        "pkg/ops/flash.py:4 (class body): 5 modules",
        "pkg/ops/__init__.py:2  pkg.ops imports pkg.ops.flash",
        "pkg/ops/flash.py:4",
        "make `pkg/ops/__init__.py:2` (pkg.ops imports pkg.ops.flash) lazy: frees 4 of 5",
    ]


def test_the_chain_begins_at_the_root_if_that_touches(tmp_path: Path) -> None:
    cuts = only(
        tmp_path,
        {
            "pkg/__init__.py": "from pkg.llm import LLM",
            "pkg/llm.py": "from .low.cuda import x\nLLM = 1",
            "pkg/low/__init__.py": "",
            "pkg/low/cuda.py": f"{TOUCH}\nx = 1",
            "pkg/aside.py": "",
        },
    )
    assert cuts.entry == "pkg"
    assert [edge.pair for edge in cuts.chain] == [("pkg", "pkg.llm"), ("pkg.llm", "pkg.low.cuda")]
    # Without the first import of the chain, pkg.llm would still touch.
    assert cuts.lazy is not None
    assert cuts.lazy.edges[0].pair == ("pkg.llm", "pkg.low.cuda")
    assert cuts.lazy.frees == 4


def test_among_equals_the_edge_nearest_to_the_entry_point_is_named(tmp_path: Path) -> None:
    cuts = only(
        tmp_path,
        {
            "pkg/__init__.py": "",
            "pkg/sub/__init__.py": "",
            "pkg/sub/deep/__init__.py": "",
            "pkg/a.py": "import pkg.sub.b",
            "pkg/sub/b.py": "import pkg.hot\nimport pkg.sub.deep.c",
            "pkg/sub/deep/c.py": "import pkg.hot",
            "pkg/hot.py": TOUCH,
        },
    )
    assert cuts.lazy is not None
    assert cuts.lazy.frees == 1
    assert cuts.lazy.edges[0].pair == ("pkg.a", "pkg.sub.b")
    assert cuts.entry == "pkg.hot"
    assert cuts.chain == ()


def test_imports_that_must_go_together_are_named_together(tmp_path: Path) -> None:
    files = {
        "pkg/__init__.py": "import pkg.one\nimport pkg.two",
        "pkg/one.py": "from pkg import hot",
        "pkg/two.py": "\nimport pkg.hot",
        "pkg/hot.py": TOUCH,
        **{f"pkg/user{index}.py": "" for index in range(9)},
    }
    cuts = only(tmp_path, files)
    assert cuts.lazy is None
    assert cuts.together is not None
    assert cuts.together.frees == 12
    assert told(cuts, tmp_path)[-1] == (
        "make `pkg/one.py:1`, `pkg/two.py:2` lazy, all 2 together: frees 12 of 13"
    )


def test_where_no_import_can_be_lazy_the_line_itself_must_change(tmp_path: Path) -> None:
    cuts = only(tmp_path, {"pkg/__init__.py": TOUCH, "pkg/a.py": "import pkg", "pkg/b.py": ""})
    assert cuts.modules == ("pkg", "pkg.a", "pkg.b")
    assert (cuts.lazy, cuts.together, cuts.chain) == (None, None, ())
    assert told(cuts, tmp_path) == [
        "pkg/__init__.py:2 (module body): 3 modules",
        "change the line itself: no import that can be made lazy frees a module",
    ]


def test_a_culprit_in_a_library_is_cut_off_where_the_package_enters_it(tmp_path: Path) -> None:
    cuts = only(
        tmp_path,
        {
            "lib/__init__.py": "import lib.inner",
            "lib/inner.py": TOUCH,
            "pkg/__init__.py": "",
            "pkg/gate.py": "\nfrom lib.inner import cuda_stub",
            "pkg/a.py": "import pkg.gate",
            "pkg/b.py": "import pkg.gate",
        },
    )
    assert cuts.sinks == ("lib",)
    assert told(cuts, tmp_path) == [
        "lib/inner.py:2 (module body): 3 modules",
        "pkg/gate.py:2  pkg.gate imports lib.inner",
        "lib.inner runs its parent lib",
        "lib/inner.py:2",
        "make `pkg/gate.py:2` (pkg.gate imports lib.inner) lazy: frees 3 of 3",
    ]


def test_an_import_by_name_is_advised_on_too(tmp_path: Path) -> None:
    cuts = only(
        tmp_path,
        {
            "pkg/__init__.py": "",
            "pkg/gate.py": "import importlib\nimportlib.import_module('pkg.hot')",
            "pkg/a.py": "import pkg.gate",
            "pkg/hot.py": TOUCH,
        },
    )
    assert told(cuts, tmp_path)[-1] == (
        "make `pkg/gate.py:2` (pkg.gate imports pkg.hot) lazy: frees 2 of 3"
    )


def test_each_culprit_line_has_its_own_advice_the_biggest_first(tmp_path: Path) -> None:
    graph, records = audit(
        tmp_path,
        {
            "pkg/__init__.py": "",
            "pkg/a.py": TOUCH,
            "pkg/b.py": TOUCH,
            "pkg/c.py": "import pkg.b",
            "pkg/clean.py": "",
        },
    )
    found = find_cuts(graph, records)
    assert [cuts.modules for cuts in found] == [("pkg.b", "pkg.c"), ("pkg.a",)]
    assert find_cuts(graph, records[::-1]) == found
    assert find_cuts(graph, []) == []


def test_a_touch_without_a_stack_is_told_without_a_chain() -> None:
    records = [
        ImportRecord("pkg.a", "pkg", ImportVerdict.TOUCHES, touches=(touch_with([]),)),
        ImportRecord("pkg.b", "pkg", ImportVerdict.TOUCHES),
    ]
    graph = ImportGraph({"pkg.a": "a.py"}, {}, {"pkg.a": ()})
    lines = [cut_lines(cuts) for cuts in find_cuts(graph, records)]
    assert [line[0] for line in lines] == [
        "no line is known: 1 module",
        "no Python stack: 1 module",
    ]
    assert all(len(line) == 2 and "nothing can be said" in line[1] for line in lines)


def test_a_thread_that_touches_is_told_by_the_module_of_its_line() -> None:
    touch = touch_with([["/src/pkg/hot.py", 4, "work", 3]])
    records = [
        ImportRecord(name, "pkg", ImportVerdict.TOUCHES, touches=(touch,))
        for name in ("pkg.a", "pkg.hot")
    ]
    graph = ImportGraph(
        {"pkg.a": "/src/pkg/a.py", "pkg.hot": "/src/pkg/hot.py"},
        {("pkg.a", "pkg.hot"): Edge("pkg.a", "pkg.hot", EdgeKind.IMPORT, "/src/pkg/a.py", (3, 9))},
        {},
    )
    (cuts,) = find_cuts(graph, records)
    assert cuts.sinks == ("pkg.hot",)
    assert cut_lines(cuts, "/src")[-1].strip() == (
        "make `pkg/a.py:3,9` (pkg.a imports pkg.hot) lazy: frees 1 of 2"
    )


@pytest.mark.parametrize("is_lazy", [False, True])
def test_an_import_that_is_lazy_already_is_not_to_be_made_so(is_lazy: bool) -> None:
    touch = touch_with([["/src/pkg/hot.py", 4, "<module>", 3]])
    records = [
        ImportRecord(name, "pkg", ImportVerdict.TOUCHES, touches=(touch,))
        for name in ("pkg.a", "pkg.hot")
    ]
    edge = Edge("pkg.a", "pkg.hot", EdgeKind.IMPORT, "/src/pkg/a.py", (3,), is_lazy)
    graph = ImportGraph(
        {"pkg.a": "/src/pkg/a.py", "pkg.hot": "/src/pkg/hot.py"}, {edge.pair: edge}, {}
    )
    (cuts,) = find_cuts(graph, records)
    text = "\n".join(cut_lines(dataclasses.replace(cuts, chain=(edge,)), "/src"))
    assert ("pkg.a imports pkg.hot, lazily" in text) is is_lazy
    assert ("make `pkg/a.py:3`" in text) is not is_lazy
    assert ("change the line itself" in text) is is_lazy


@pytest.mark.slow
def test_a_thousand_modules_with_ten_thousand_edges_take_seconds() -> None:
    rng = random.Random(5)
    names = [f"r.m{index}" for index in range(1000)]
    pairs = {(rng.choice(names), rng.choice(names)) for _ in range(10_000)}
    pairs |= {(name, names[0]) for name in rng.sample(names, 300)}
    graph = made(pairs, names, names, {names[0]})
    start = time.process_time()  # other processes do not count
    (cuts,) = find_cuts(graph, made_records(names))
    assert time.process_time() - start < 60  # below 1 on an idle machine
    assert cuts.sinks == (names[0],)

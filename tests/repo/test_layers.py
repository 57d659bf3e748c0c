"""Imports run one way: plugin -> the parts -> what watches a process -> guard, isolate -> observe.

The layers are written down for readers in docs/explanation/architecture.md.
"""

from __future__ import annotations

import ast
import graphlib

import pytest

from tests.repo.sources import DOCS, PACKAGE, PROJECT, Module, imports_of, modules

# Innermost first. A name stands for itself and everything below it.
LAYERS = (
    ("errors", "child_errors", "_version"),
    ("observe",),
    ("guard", "isolate", "state", "capture"),
    ("watch", "inherit"),
    ("option",),
    (
        "options",
        "options_imports",
        "markers",
        "gpus.wishes",
        "findings",
        "session",
        "isolation",
        "phantom_fixture",
    ),
    ("gpus", "forked", "imports"),
    ("fixtures", "check", "report", "graph_tests"),
    ("plugin", "__main__"),
)

# These run in processes of their own, or in the user's program, where pytest may not be installed
# or not wanted.
WITHOUT_PYTEST = (
    "errors",
    "child_errors",
    "observe",
    "capture",
    "guard",
    "state",
    "watch",
    "inherit",
    "isolate.child",
    "isolate.child_call",
    "isolate.leftovers",
    "isolate.wire",
    "isolate.call_server",
    "imports.footing",
    "imports.hiding",
    "imports.importer",
    "imports.job",
    "imports.preload",
    "imports.records",
    "imports.settings",
    "imports.signals",
    "imports.slate",
    "imports.template",
    "imports.threads",
    "imports.verdicts",
    "imports.warden",
)
# They run in the child; everything else in ``isolate`` belongs to the parent.
CHILD_SIDE = (
    "blackbox",
    "call_server",
    "child",
    "child_call",
    "child_capture",
    "child_config",
    "child_items",
    "child_plugins",
    "child_session",
    "cores",
    "cov_plugin",
    "coverage_data",
    "leftovers",
    "live_text",
    "peer_words",
    "randomness",
    "rehearsal",
    "report_data",
    "template_memory",
    "wire",
    "zygote_control",
    "zygote",
)
SHARED_WITH_CHILD = ("isolate", "child_errors", "errors", "state")
# These exist for torch alone. They are imported when a test captures a graph.
WITH_TORCH = ("capture",)
# What the plugin imports of them before that.
WITHOUT_TORCH = ("capture.backend", "capture.choose")
HEAVY = ("torch", "numpy", "triton", "cupy", "numba", "jax", "pynvml", "cuda")

ALL = [module for module in modules() if module.short]


def below(name: str, roots: tuple[str, ...]) -> bool:
    """Whether a dotted name is one of the roots or lies below one."""
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def layer_of(short: str) -> int:
    """The layer of a module."""
    for number, layer in enumerate(LAYERS):
        if below(short, layer):
            return number
    pytest.fail(
        f"{short} is in no layer: give it one in LAYERS and in docs/explanation/architecture.md"
    )


@pytest.mark.parametrize("module", ALL, ids=lambda m: m.short)
def test_imports_go_to_the_same_layer_or_further_in(module: Module) -> None:
    own = layer_of(module.short)
    for found in imports_of(module):
        if found.typing or found.target == PACKAGE or not below(found.target, (PACKAGE,)):
            continue
        target = found.target.removeprefix(f"{PACKAGE}.")
        assert layer_of(target) <= own, (
            f"{module.path.relative_to(PROJECT)}:{found.line} imports {target}, a layer further out"
        )


def test_there_is_no_cycle_of_imports_at_the_top_of_modules() -> None:
    names = {module.name for module in modules()}
    graph = {
        module.name: {
            found.target
            for found in imports_of(module)
            if not found.late and not found.typing and found.target in names
        }
        for module in modules()
    }
    try:
        list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail(f"modules import each other: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("module", ALL, ids=lambda m: m.short)
def test_what_runs_outside_the_pytest_process_does_not_import_pytest(module: Module) -> None:
    if not below(module.short, WITHOUT_PYTEST):
        return
    wrong = [
        found.line
        for found in imports_of(module)
        if not found.typing and not found.late and below(found.target, ("pytest", "_pytest"))
    ]
    assert not wrong, f"{module.path.relative_to(PROJECT)} imports pytest in lines {wrong}"


def test_the_child_side_imports_nothing_of_the_parent_side() -> None:
    for module in ALL:
        if not below(module.short, tuple(f"isolate.{name}" for name in CHILD_SIDE)):
            continue
        for found in imports_of(module):
            if found.typing or found.late or not below(found.target, (PACKAGE,)):
                continue
            short = found.target.removeprefix(PACKAGE).removeprefix(".")
            assert below(short, SHARED_WITH_CHILD), f"{module.short} imports {short}"
            if below(short, ("isolate",)) and short != "isolate":
                assert short.removeprefix("isolate.") in CHILD_SIDE, f"{module.short}: {short}"


@pytest.mark.parametrize("module", ALL, ids=lambda m: m.short)
def test_nothing_heavy_is_imported_at_the_top(module: Module) -> None:
    with_torch = below(module.short, WITH_TORCH) and module.short not in WITHOUT_TORCH
    allowed = ("torch",) if with_torch else ()
    wrong = [
        f"{found.target} in line {found.line}"
        for found in imports_of(module)
        if not found.late
        and not found.typing
        and below(found.target, HEAVY)
        and not below(found.target, allowed)
    ]
    assert not wrong, f"{module.path.relative_to(PROJECT)} imports {', '.join(wrong)}"


def test_what_imports_torch_is_imported_late() -> None:
    for module in ALL:
        if below(module.short, WITH_TORCH):
            continue
        for found in imports_of(module):
            short = found.target.removeprefix(PACKAGE).removeprefix(".")
            if found.late or found.typing or not below(short, WITH_TORCH):
                continue
            assert short in WITHOUT_TORCH, f"{module.short} imports {short} at its top"


def test_the_package_imports_neither_tests_nor_the_sample_engine() -> None:
    for module in modules():
        for found in imports_of(module):
            assert not below(found.target, ("tests", "sample_engine", "benchmarks", "demo")), (
                f"{module.path.relative_to(PROJECT)}:{found.line} imports {found.target}"
            )


def test_the_sample_engine_does_not_import_the_package() -> None:
    for path in (PROJECT / "sample_engine").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            targets = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            targets += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(below(target, (PACKAGE,)) for target in targets), path


def test_the_layers_are_written_down() -> None:
    page = (DOCS / "explanation" / "architecture.md").read_text(encoding="utf-8")
    missing = [name for layer in LAYERS for name in layer if f"`{name}`" not in page]
    assert not missing, f"docs/explanation/architecture.md does not say where {missing} belong"

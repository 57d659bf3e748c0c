"""Who may import whom, read off the folders."""

from __future__ import annotations

import ast
import graphlib

import pytest

from tests.repo.sources import PACKAGE, PROJECT, Import, Module, folder_of, imports_of, modules

# Folders of code that runs in a process of its own, and those of pytest's side beside them.
CHILD_SIDE = ("child", "worker")
PYTEST_SIDE = ("session", "audit", "report")

# The one folder whose modules may need torch at their top, as they exist for torch alone, and the
# private names they use; they are imported when a test captures a graph. And what the plugin
# imports of them before that.
WITH_TORCH = ("capture", "compat.torch_graphs")
WITHOUT_TORCH = (
    "capture.in_tests.gathered",
    "capture.in_tests.words",
    "capture.interface.backend",
    "capture.interface.check_names",
    "capture.interface.hidden_frames",
    "capture.interface.lines",
    "capture.interface.meanwhile",
    "capture.interface.progress",
    "capture.interface.seen",
    "capture.interface.weak_tensors",
    "capture.in_programs.told",
    "capture.choose",
    "capture.marker",
    "capture.rerun.orders",
    "capture.rerun.verdict",
    "capture.story.findings",
    "capture.story.remarks",
)
HEAVY = ("torch", "numpy", "triton", "cupy", "numba", "jax", "pynvml", "cuda")

# Where a process that pytest knows nothing of begins: in programs that a watched session starts,
# in the import of a module, in a function that was sent to a child.
ENTRY_POINTS = ("check.watch", "call.in_child", "process.child")

ALL = [module for module in modules() if module.short]
BY_NAME = {module.name: module for module in modules()}


def below(name: str, roots: tuple[str, ...]) -> bool:
    """Whether a dotted name is one of the roots or lies below one."""
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def own_imports(module: Module) -> list[Import]:
    """Return what a module imports of this package when it runs, at its top or later."""
    return [found for found in imports_of(module) if not found.typing and found.target in BY_NAME]


def test_there_is_no_cycle_of_imports_at_the_top_of_modules() -> None:
    graph = {
        module.name: {found.target for found in own_imports(module) if not found.late}
        for module in modules()
    }
    try:
        list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail(f"modules import each other: {' -> '.join(error.args[1])}")


def test_no_two_folders_import_each_other() -> None:
    graph: dict[str, set[str]] = {}
    for module in modules():
        targets = {folder_of(BY_NAME[found.target]) for found in own_imports(module)}
        graph.setdefault(folder_of(module), set()).update(targets - {folder_of(module)})
    try:
        list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail(f"folders import each other: {' <- '.join(error.args[1])}")


def test_code_for_a_child_imports_nothing_of_the_side_of_pytest() -> None:
    wrong = [
        f"{module.short}:{found.line} imports {found.target}"
        for module in ALL
        if folder_of(module).rpartition("/")[2] in CHILD_SIDE
        for found in own_imports(module)
        if folder_of(BY_NAME[found.target]).rpartition("/")[2] in PYTEST_SIDE
    ]
    assert not wrong, "\n".join(wrong)


def test_what_runs_where_no_pytest_is_does_not_import_it() -> None:
    roots = [module for module in ALL if folder_of(module).endswith("/worker")]
    roots += [BY_NAME[f"{PACKAGE}.{name}"] for name in ENTRY_POINTS]
    for module in reached_from(roots):
        for found in imports_of(module):
            if not found.typing and not found.late:
                assert not below(found.target, ("pytest", "_pytest")), (
                    f"{module.short}:{found.line} imports {found.target}"
                )


def reached_from(roots: list[Module]) -> list[Module]:
    """Return all modules that are imported when these are."""
    seen = {module.name: module for module in roots}
    waiting = list(roots)
    while waiting:
        for found in own_imports(waiting.pop()):
            if not found.late and found.target not in seen:
                seen[found.target] = BY_NAME[found.target]
                waiting.append(BY_NAME[found.target])
    return list(seen.values())


def may_need_torch(module: Module) -> bool:
    """Whether a module exists for torch, so that it may import it at its top."""
    return below(module.short, WITH_TORCH) and module.short not in WITHOUT_TORCH


def test_nothing_heavy_is_imported_at_the_top() -> None:
    wrong = [
        f"{module.path.relative_to(PROJECT)}:{found.line} imports {found.target}"
        for module in ALL
        for found in imports_of(module)
        if not found.late
        and not found.typing
        and below(found.target, HEAVY)
        and not below(found.target, ("torch",) if may_need_torch(module) else ())
    ]
    assert not wrong, "\n".join(wrong)


def test_what_imports_torch_is_imported_late() -> None:
    for module in ALL:
        if may_need_torch(module):
            continue
        for found in own_imports(module):
            target = BY_NAME[found.target]
            if found.late or not below(target.short, WITH_TORCH) or is_package(target):
                continue
            assert target.short in WITHOUT_TORCH, f"{module.short} imports {target.short}"


def is_package(module: Module) -> bool:
    """Whether the module is the ``__init__.py`` of a folder."""
    return module.path.name == "__init__.py"


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

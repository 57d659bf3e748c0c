"""What a source names anywhere in it, and whether it may import what it does not name."""

from __future__ import annotations

import pytest

from pytest_cudafork.imports.since.sources import written_in
from pytest_cudafork.imports.values.targets import FoundModule

MODULE = FoundModule("pkg.sub.here", "")
PACKAGE = FoundModule("pkg.sub", "", is_package=True)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("import os.path, pkg.a as b", {"os.path", "pkg.a"}),
        ("from pkg import (\n    a,\n)", {"pkg", "pkg.a"}),
        ("from . import x", {"pkg.sub", "pkg.sub.x"}),
        ("from ..other import x as y, z", {"pkg.other", "pkg.other.x", "pkg.other.z"}),
        ("def f():\n    from pkg import late", {"pkg", "pkg.late"}),
        ("if TYPE_CHECKING:\n    import pkg.typed", {"pkg.typed"}),
        ("BACKENDS = {'a': 'pkg.backends.a:Backend'}", {"pkg.backends.a.Backend"}),
        ("NAME = '.sibling'", {"pkg.sub.sibling"}),
        ("TEXT = 'Two words. No module.'; WORD = 'word'", set()),
        ("from ..... import too_far", set()),
    ],
)
def test_every_name_counts(source: str, named: set[str]) -> None:
    written = written_in(source.encode(), MODULE)
    assert set(written.imports) - {".too_far"} == named
    assert not written.is_dynamic


def test_dots_are_counted_from_a_package_itself() -> None:
    assert set(written_in(b"from .x import y", PACKAGE).imports) == {"pkg.sub.x", "pkg.sub.x.y"}


@pytest.mark.parametrize(
    "source",
    [
        "importlib.import_module(name)",
        "__import__(name)",
        "exec(code)",
        "for each in pkgutil.iter_modules(__path__): pass",
        "def __getattr__(name): ...",
        "x = lazy_loader.attach(__name__, ['a'])",
        "class _LazyModule: ...",
        "fast = optional_import('fast')",
        "backend = import_string(name)",
        "backend = tryImport(name)",
        "pydoc.locate(name)",
        "pickle.load(file)",
        "torch.load(path)",
        "not Python (",
    ],
)
def test_what_imports_by_other_ways_may_import_anything(source: str) -> None:
    assert written_in(source.encode(), MODULE).is_dynamic

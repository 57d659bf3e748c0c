"""What a source may import, anywhere in it, and whether it may import what it does not name."""

from __future__ import annotations

import ast
import re
import warnings
from typing import NamedTuple

from pytest_cudafork.imports.graph.static_imports import absolute_name
from pytest_cudafork.imports.values.targets import FoundModule

_DYNAMIC = re.compile(
    rb"import_module|__import__|resolve_name|\bexec\s*\(|\beval\s*\(|run_path|run_module"
    rb"|walk_packages|iter_modules|find_spec|find_loader|entry_points|spec_from|exec_module"
    rb"|load_module|SourceFileLoader|sys\s*\.\s*modules|sys\s*\.\s*path|__path__|meta_path"
    rb"|[Ll]azy|__getattr__|\w[Ii]mport\w*\s*\(|\bimport\w+\s*\(|\blocate\s*\(|instantiate"
    rb"|pickle|joblib|torch\s*\.\s*load\b|unsafe_load"
)
"""Words of sources that import by other ways than the statement; ``LazyLoader``, and ``lazy`` of
libraries that defer imports; functions named like ``optional_import``; ``pydoc.locate``; and what
imports by names in data. A module too many costs an import; one too few would be a false
green."""
_NAME = re.compile(r"\.*[A-Za-z_]\w*(?:[.:][A-Za-z_]\w*)*")


class Written(NamedTuple):
    """What a source names, as full names of modules, or of names in modules; and the rest."""

    imports: tuple[str, ...]
    is_dynamic: bool


def written_in(source: bytes, module: FoundModule) -> Written:
    """Return what a module may import at any time, in functions too.

    Texts that look like the name of a module count: something may import them by that.

    Args:
        source: The file.
        module: Which module it is.

    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes are the business of others
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Written((), is_dynamic=True)
    names: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(dict.fromkeys(alias.name for alias in node.names))
        elif isinstance(node, ast.ImportFrom):
            origin = absolute_name("." * node.level + (node.module or ""), module)
            names[origin] = None
            names.update(dict.fromkeys(f"{origin}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            if ("." in text or ":" in text) and _NAME.fullmatch(text):
                names[absolute_name(text.replace(":", "."), module)] = None
    names.pop("", None)
    return Written(tuple(names), bool(_DYNAMIC.search(source)))

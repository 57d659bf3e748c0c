"""A graph specimen: its module, what must be said of its buggy form, and where."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

MARKER = "# graph: named"
"""The comment on the line that the failure must name, so that no number is written twice."""

HOME = Path(__file__).parent
BOTH = ("software", "cuda")


@dataclass(frozen=True)
class GraphSpecimen:
    """One mechanism, shown by one module with the classes ``Buggy`` and ``Fixed``.

    Attributes:
        name: the module beside this one.
        mechanism: what goes wrong, in the words of the corpus.
        corpus: the bugs it stands for, ``owner/repository#number``.
        checks: the words of the checks that must speak, all of them.
        checks_on_cuda: those on a GPU, where they are others.
        path: what a finding of one of these checks must name; "": nothing has a path.
        note: what is particular about it, one sentence.
        backends: where the mechanism exists.
        reason: why it does not exist on a backend that is left out.
        seed: whether it is one of the bugs that the checks were written for.

    """

    name: str
    mechanism: str
    corpus: tuple[str, ...]
    checks: tuple[str, ...]
    note: str
    path: str = ""
    backends: tuple[str, ...] = BOTH
    reason: str = ""
    seed: bool = False
    checks_on_cuda: tuple[str, ...] = ()

    def words(self, backend: str) -> tuple[str, ...]:
        """Return the checks that must speak on a backend."""
        return self.checks_on_cuda if backend == "cuda" and self.checks_on_cuda else self.checks

    @property
    def file(self) -> Path:
        """The module's file."""
        return HOME / f"{self.name}.py"

    @property
    def module(self) -> ModuleType:
        """The module; it imports torch."""
        return importlib.import_module(f"tests.specimens.graphs.{self.name}")

    def form(self, form: str) -> type[Any]:
        """Return the class of the ``buggy`` or ``fixed`` form."""
        found: type[Any] = getattr(self.module, form.capitalize())
        return found

    @property
    def check(self) -> Callable[..., None]:
        """The test that its author would write, the same for both forms."""
        found: Callable[..., None] = self.module.check
        return found

    @property
    def named_lines(self) -> tuple[str, ...]:
        """The marked lines of the module as ``file:line``; a report names one of them."""
        text = self.file.read_text(encoding="utf-8").splitlines()
        return tuple(
            f"{self.file}:{number}"
            for number, line in enumerate(text, start=1)
            if line.rstrip().endswith(MARKER)
        )

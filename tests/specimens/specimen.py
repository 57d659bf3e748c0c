"""A specimen: its two forms on disk, its culprit line, and what the buggy form must show.

``buggy/`` is a whole package. ``fixed/`` holds the files that the repair changes or adds: the fixed
form is ``buggy/`` with these laid over it, so that the repair can be read off the folder.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.torch import torch_release

MARKER = "# touch: culprit"
"""The comment on the line that the report must name, so that no number is written twice."""

HOME = Path(__file__).parent

_STORIES = {
    "poison": "was forked from an initialized process and touched CUDA",
    "fork": "fork refused: ",
    "touch": "CUDA was initialized in the pytest process",
}


@dataclass(frozen=True)
class Form:
    """A package made of folders that are laid over each other.

    Attributes:
        layers: the folders; a file of a later one replaces the file of the same path before it.
        removed: paths, relative to the folders, that the package does not have although one of
            the folders has them.

    """

    layers: tuple[Path, ...]
    removed: tuple[str, ...] = ()

    def files(self) -> dict[str, Path]:
        """Return where each file comes from, by its path in the package, sorted.

        Raises:
            LookupError: a removed file is in none of the folders.

        """
        found = {
            path.relative_to(layer).as_posix(): path
            for layer in self.layers
            for path in layer.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        for name in self.removed:
            if found.pop(name, None) is None:
                raise LookupError(
                    f"{name!r} is to be removed, but {self.layers[0]} has no such file"
                )
        return dict(sorted(found.items()))

    def copy_to(self, folder: Path) -> None:
        """Write the package into a folder, which is made if it is not there."""
        for name, path in self.files().items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, folder / name)


@dataclass(frozen=True)
class Specimen:
    """One mechanism, shown by a small package with its test.

    Attributes:
        name: the directory under ``tests/specimens``, with the folders ``buggy`` and ``fixed``.
        mechanism: how CUDA comes to be initialized too early, in the words of ``corpus.py``.
        corpus: the bugs it stands for, ``owner/repository#number``.
        level: the ``--cuda-fork-check`` under which the buggy form fails.
        culprit: the file with the marked line, relative to the form's directory.
        note: what is particular about it, one sentence.
        device: ``--cuda-fork-device``; a phantom GPU where the line is reached with a GPU only.
        needs: modules that must be importable.
        seed: whether it is one of the bugs that the plugin was written for.
        gpu: whether the same package shows the same on a real GPU.
        status: the exit status of the buggy form; 2 where its collection fails.
        python_below: the Python version in which the mechanism is gone.
        torch_below: the release of torch in which it is gone.
        marker: the comment that ends the culprit line.
        removed: files of ``buggy`` that the fixed form does not have.

    """

    name: str
    mechanism: str
    corpus: tuple[str, ...]
    level: str
    culprit: str
    note: str
    device: str = "auto"
    needs: tuple[str, ...] = ()
    seed: bool = False
    gpu: bool = True
    status: int = 1
    python_below: tuple[int, int] = (4, 0)
    torch_below: tuple[int, int] = (3, 0)
    marker: str = MARKER
    removed: tuple[str, ...] = ()

    @property
    def expects_failure(self) -> str:
        """The words of the story with which the buggy form fails."""
        return _STORIES[self.level]

    def why_not(self) -> str:
        """Return why this Python cannot show it; "" where it can."""
        for what, here, below in (
            ("Python", sys.version_info[:2], self.python_below),
            ("torch", torch_release(), self.torch_below),
        ):
            if here >= below:
                return f"is about {what} below {'.'.join(map(str, below))}"
        missing = [module for module in self.needs if importlib.util.find_spec(module) is None]
        return f"needs {missing[0]}, which is not installed" if missing else ""

    def form(self, form: str) -> Form:
        """Return the ``buggy`` or the ``fixed`` form.

        Raises:
            ValueError: there is no form of this name.

        """
        buggy, fixed = HOME / self.name / "buggy", HOME / self.name / "fixed"
        if form == "buggy":
            return Form((buggy,))
        if form == "fixed":
            return Form((buggy, fixed), self.removed)
        raise ValueError(f"{form!r} is no form of a specimen: it is 'buggy' or 'fixed'")

    def sources(self, form: str) -> dict[str, str]:
        """Return the texts of the form's Python files, by their path in the package."""
        return {
            name: path.read_text(encoding="utf-8")
            for name, path in self.form(form).files().items()
            if path.suffix == ".py"
        }

    def marked_lines(self, form: str) -> list[str]:
        """Return every marked line of a form as ``path:line``."""
        return [
            f"{path}:{number}"
            for path, text in self.sources(form).items()
            for number, line in enumerate(text.splitlines(), start=1)
            if line.rstrip().endswith(self.marker)
        ]

    @property
    def culprit_line(self) -> str:
        """The marked line of the buggy form, as ``path:line``.

        Raises:
            LookupError: not exactly one line of the culprit's file is marked.

        """
        lines = [line for line in self.marked_lines("buggy") if line.startswith(f"{self.culprit}:")]
        if len(lines) != 1:
            raise LookupError(
                f"{HOME / self.name / 'buggy' / self.culprit} has {len(lines)} lines that end in "
                f"{self.marker!r}: mark exactly one"
            )
        return lines[0]

    @property
    def named_lines(self) -> tuple[str, ...]:
        """Return the lines that a report may name: the culprit line, as this Python numbers it.

        Python 3.10 gives the call of a decorator the line of the ``def`` below it.
        """
        path, _, number = self.culprit_line.rpartition(":")
        text = self.sources("buggy")[path].splitlines()[int(number) - 1]
        if sys.version_info < (3, 11) and text.startswith("@"):
            return self.culprit_line, f"{path}:{int(number) + 1}"
        return (self.culprit_line,)

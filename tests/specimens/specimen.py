"""Owns what a specimen is: its place on disk, its culprit line, and what its buggy form must show.

It does not know how a specimen is run.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

MARKER = "# touch: culprit"
"""The comment on the line that the report must name, so that no number is written twice."""

HOME = Path(__file__).parent

_STORIES = {
    "poison": "was forked from an initialized process and touched CUDA",
    "fork": "fork refused: ",
    "touch": "CUDA was initialized in the pytest process",
}


@dataclass(frozen=True)
class Specimen:
    """One mechanism, shown by a small package with its test.

    Attributes:
        name: the directory under ``tests/specimens``, with the forms ``buggy`` and ``fixed``.
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
    marker: str = MARKER

    @property
    def expects_failure(self) -> str:
        """The words of the story with which the buggy form fails."""
        return _STORIES[self.level]

    def form(self, form: str) -> Path:
        """Return the directory of the ``buggy`` or ``fixed`` form."""
        return HOME / self.name / form

    def sources(self, form: str) -> dict[str, str]:
        """Return the form's Python files, by their path relative to the form's directory."""
        root = self.form(form)
        return {
            path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
            for path in sorted(root.rglob("*.py"))
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
                f"{self.form('buggy') / self.culprit} has {len(lines)} lines that end in "
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

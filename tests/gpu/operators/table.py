"""Writes docs/reference/graph-operators.md: ``python -m tests.gpu.operators.table``.

``python -m tests.gpu.operators.table CUDA.json SOFTWARE.json`` first takes over what two sweeps
(``tests.gpu.operators.sweep``) have found, and keeps it in ``answers.json`` beside this module.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Answers", "disagreements", "render"]

HOME = Path(__file__).parent
ANSWERS = HOME / "answers.json"
PAGE = HOME.parents[2] / "docs" / "reference" / "graph-operators.md"

LETTERS = {"taken": "t", "refused": "r", "differs": "d", "broken": "b", "not judged": "n"}
WORDS = {letter: word for word, letter in LETTERS.items()}

_ON_THE_HOST = (
    "what the samples give here lies on the host, in CUDA's run as well; every tensor from outside "
    "counts as one on the device"
)
WHY = {
    "histc": "the two releases of torch have other samples",
    "index_put": _ON_THE_HOST,
    "narrow": _ON_THE_HOST,
    "tensor_split": _ON_THE_HOST,
}
"""Why the backends disagree, where it was found out."""

_HEAD = """\
# Operators on both backends

<!-- Written by `python -m tests.gpu.operators.table`, from what two sweeps have found. -->

Each operator that torch tests itself with was captured on up to four of its samples: by CUDA alone,
without the plugin (torch {cuda}, H200), and on the software graph (torch {software}). A sample is
*taken* if it can be captured and a replay gives what eager code gives, *refused* if the capture
fails.

```
python -m tests.gpu.operators.sweep --backend cuda cuda.json          # needs an NVIDIA GPU
python -m tests.gpu.operators.sweep --backend software software.json
python -m tests.gpu.operators.table cuda.json software.json
```

| | operators |
|---|---|
| both take all samples | {taken} |
| both refuse the same samples | {refused} |
| they disagree | {differ} |
| the software graph says that it cannot judge them | {open} |
| eager code runs on one of them only, or on none | {elsewhere} |

Where they disagree:

"""


class Disagreement(NamedTuple):
    """An operator of which the backends say something else."""

    name: str
    cuda: str
    software: str
    words: str


class Answers:
    """What both backends said: a letter for each sample."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.torch: dict[str, str] = content["torch"]
        self.said: dict[str, list[str]] = content["operators"]  # on CUDA, on the software graph
        self.words: dict[str, str] = content["words"]  # why one of them refused, where they differ

    @classmethod
    def kept(cls) -> Answers:
        """Return those that are kept beside this module."""
        return cls(json.loads(ANSWERS.read_text(encoding="utf-8")))


def compared(cuda: str, software: str) -> list[tuple[str, str]]:
    """Return the answers to the samples that ran on both, and were judged."""
    return [pair for pair in zip(cuda, software, strict=False) if not {"b", "n"} & set(pair)]


def disagreements(answers: Answers) -> list[Disagreement]:
    """Return the operators of which the backends say something else, in order."""
    found = []
    for name, (cuda, software) in sorted(answers.said.items()):
        if any(one != other for one, other in compared(cuda, software)):
            words = WHY.get(name, answers.words.get(name, ""))
            found.append(Disagreement(name, cuda, software, words))
    return found


def render(answers: Answers) -> str:
    """Return the page's text."""
    differ = disagreements(answers)
    names = {one.name for one in differ}
    taken = refused = elsewhere = unjudged = 0
    for name, (cuda, software) in answers.said.items():
        both = compared(cuda, software)
        if name in names:
            continue
        unjudged += not both and "n" in software
        elsewhere += not both and "n" not in software
        refused += bool(both) and any(pair != ("t", "t") for pair in both)
        taken += bool(both) and all(pair == ("t", "t") for pair in both)
    counts = {"taken": taken, "refused": refused, "open": unjudged, "elsewhere": elsewhere}
    rows = ["| operator | CUDA | software graph | why |", "|---|---|---|---|"]
    rows += [
        f"| `{one.name}` | {_said(one.cuda)} | {_said(one.software)} | {one.words} |"
        for one in differ
    ]
    return _HEAD.format(**answers.torch, **counts, differ=len(differ)) + "\n".join(rows) + "\n"


def _said(letters: str) -> str:
    """Return answers in words, each once."""
    words = list(dict.fromkeys(WORDS[letter] for letter in letters if letter not in "bn"))
    return " or ".join(words)


def _take_over(cuda: Path, software: Path) -> None:
    """Keep what two sweeps have found."""
    sides = [json.loads(path.read_text(encoding="utf-8")) for path in (cuda, software)]
    operators: dict[str, list[str]] = {}
    words: dict[str, str] = {}
    for name in sorted(set(sides[0]["operators"]) & set(sides[1]["operators"])):
        both = [side["operators"][name] for side in sides]
        operators[name] = ["".join(LETTERS[each["said"]] for each in answers) for answers in both]
        pairs = list(zip(*both, strict=False))
        for one, other in pairs:
            if one["said"] != other["said"] and not {"broken", "not judged"} & {
                one["said"],
                other["said"],
            }:
                words.setdefault(name, _short(one["words"] or other["words"]))
    about = {"cuda": sides[0]["about"]["torch"], "software": sides[1]["about"]["torch"]}
    content = {"torch": about, "operators": operators, "words": words}
    ANSWERS.write_text(json.dumps(content, indent=0) + "\n", encoding="utf-8")


def _short(words: str) -> str:
    """Return the beginning of an error that fits a row, without places."""
    text = words.split(" at tests/")[0].split("Search for")[0].split("CUDA kernel errors")[0]
    return " ".join(text.replace("|", "/").split())[:110]


def main(arguments: Sequence[str] | None = None) -> None:
    """Take over new answers if there are any, and write the page."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given:
        _take_over(Path(given[0]), Path(given[1]))
    PAGE.write_text(render(Answers.kept()), encoding="utf-8")


if __name__ == "__main__":
    main()

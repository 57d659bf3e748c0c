"""``python -m pytest_cudafork explain``: its arguments, what it prints, its exit status."""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, cast

from pytest_cudafork.documents.form import head
from pytest_cudafork.documents.writing import print_json, printable
from pytest_cudafork.explain import frames, pasted
from pytest_cudafork.explain.kinds import KINDS, POISONED, TOLD, Kind
from pytest_cudafork.explain.pasted import Hit
from pytest_cudafork.settings.environment import VLLM_METHOD

KNOWN, UNKNOWN, USAGE = 0, 1, 2
_LOOKED_AT = 8192
_NUL = b"\0"
_VLLM = f"{VLLM_METHOD}=spawn YOUR_COMMAND    # for the processes that vLLM itself starts"
_VLLM_PREFIX = re.compile(r"\b(?:vllm|EngineCore|VllmWorker)", re.IGNORECASE)
_LONGEST_LINE = 1 << 20
"""Characters; a line may be as long as the file."""
_WHAT = (
    "it holds none of the known messages of CUDA and fork. Paste the whole log of the process that "
    "failed, from its first error on; or run the program itself: python -m pytest_cudafork run ..."
)


class InputError(ValueError):
    """The input is none that can be explained; Recoverable by other input."""


def main(args: Sequence[str]) -> int:
    """Explain a log or traceback.

    Args:
        args: What follows ``python -m pytest_cudafork explain``.

    Returns:
        0: a known error is in it. 1: none is. 2: the arguments are wrong, or there is no text.

    """
    parser = _parser()
    given = parser.parse_args(args)
    try:
        hits = _read(given.file)
    except InputError as error:
        parser.exit(USAGE, f"{parser.prog}: error: {error}\n")
    if given.json:
        print_json({**head("explain"), **as_plain(hits)})
    elif hits:
        sys.stdout.write(printable("\n".join([*lines_of(hits), ""])))
    else:
        sys.stdout.write(f"{_WHAT}\n")
    return KNOWN if hits else UNKNOWN


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pytest_cudafork explain",
        description="Say which error of CUDA and fork a log or traceback holds, what its frames "
        "show, and what to run next. Exit status: 0 if one is known, 1 if none is, 2 where there "
        "is nothing to read.",
    )
    parser.add_argument(
        "file", metavar="FILE", nargs="?", default="-", help="The log (default, and -: stdin)."
    )
    parser.add_argument("--json", action="store_true", help="Print it as JSON.")
    return parser


def _read(name: str) -> list[Hit]:
    """Read a file or standard input.

    Raises:
        InputError: There is no text.

    """
    if name == "-":
        if sys.stdin is None:
            raise InputError("there is no standard input: name a file")
        if sys.stdin.isatty():
            sys.stderr.write("Paste the log, then press Ctrl-D.\n")
        return _hits(cast(io.BufferedReader, sys.stdin.buffer))
    try:
        with open(name, "rb") as file:
            return _hits(file)
    except OSError as error:
        hint = "name a file, or none and paste the text, which is read from standard input"
        raise InputError(f"{name}: {error.strerror}: {hint}") from None


def _hits(source: io.BufferedReader) -> list[Hit]:
    """Read a log.

    Raises:
        InputError: It is empty, or no text.

    """
    beginning = source.peek(_LOOKED_AT)[:_LOOKED_AT]
    if _NUL in beginning.lstrip(_NUL) and not _is_wide(beginning):
        raise InputError("that is no text: it holds null bytes. Name the log, no archive of it")
    encoding = "utf-16" if _is_wide(beginning) else "utf-8"
    some = False

    def texts() -> Iterator[str]:
        nonlocal some
        text = io.TextIOWrapper(source, encoding, "replace")
        while line := text.readline(_LONGEST_LINE):
            # Where a log was cut off at its beginning while it was written, that is a hole.
            line = line.lstrip("\0")
            some = some or bool(line.strip())
            yield line
        text.detach()

    hits = pasted.read(texts())
    if not some:
        raise InputError("there is nothing to explain: the input is empty")
    return hits


def _is_wide(beginning: bytes) -> bool:
    """Whether it is text as PowerShell writes it."""
    return beginning[:2] in (b"\xff\xfe", b"\xfe\xff")


def by_kind(hits: Sequence[Hit]) -> list[tuple[Kind, list[Hit]]]:
    """Return the messages by their kind, causes before what follows from others."""
    found = [(kind, [hit for hit in hits if hit.message.kind is kind]) for kind in KINDS]
    return [(kind, some) for kind, some in found if some]


def lines_of(hits: Sequence[Hit]) -> list[str]:
    """Explain in lines."""
    lines: list[str] = []
    for kind, some in by_kind(hits):
        with_frames = next((hit for hit in some if hit.frames), some[0])
        lines += [f"{kind.name}: {kind.title}", *_messages(some), f"  {kind.meaning}"]
        shown = frames.shown(with_frames.frames) if kind is not TOLD else []
        lines += ["  what the frames show:", *(f"    {line}" for line in shown)] if shown else []
        if kind.unseen:
            lines.append(f"  what the log does not show: {kind.unseen}")
        lines += ["  what to run or do next:", *(f"    {line}" for line in next_steps(kind, some))]
        lines.append("")
    return lines[:-1]


def _messages(hits: Sequence[Hit]) -> list[str]:
    return [
        f"  line {hit.line}, from {hit.message.library}"
        + (f" and {hit.times - 1} more" if hit.times > 1 else "")
        + f": {hit.text}"
        for hit in hits
    ]


def next_steps(kind: Kind, hits: Sequence[Hit]) -> list[str]:
    """Return what to run or do next.

    Where a line ran at import, with the package to audit; of vLLM, with its own setting first.
    """
    steps = [step.replace("{program}", "YOUR_SCRIPT.py ...") for step in kind.next]
    after_run = 1 + next((at for at, step in enumerate(kind.next) if "{program}" in step), 0)
    packages = dict.fromkeys(frames.imported_package(hit.frames) for hit in hits)
    for package in filter(None, packages):
        steps.insert(
            after_run,
            f"python -m pytest_cudafork imports {package}    # every module of it that touches "
            "CUDA when it is imported",
        )
    if kind is POISONED and any(map(_is_of_vllm, hits)):
        steps.insert(0, _VLLM)
    return steps


def _is_of_vllm(hit: Hit) -> bool:
    """Whether a process of vLLM has written it, as its prefix or its frames say."""
    files = (frame.filename.replace("\\", "/") for frame in hit.frames)
    return bool(_VLLM_PREFIX.search(hit.text)) or any("vllm" in file.split("/") for file in files)


def as_plain(hits: Sequence[Hit]) -> dict[str, Any]:
    """Return it as plain data."""
    return {
        "version": 1,
        "known": bool(hits),
        "errors": [
            {
                "kind": kind.name,
                "title": kind.title,
                "meaning": kind.meaning,
                "not_shown": kind.unseen,
                "messages": [
                    {
                        "library": hit.message.library,
                        "line": hit.line,
                        "times": hit.times,
                        "text": hit.text,
                        "source": hit.message.source,
                        "shown": frames.shown(hit.frames),
                        "frames": [[f.filename, f.lineno, f.name] for f in hit.frames],
                    }
                    for hit in some
                ],
                "next": next_steps(kind, some),
            }
            for kind, some in by_kind(hits)
        ],
    }

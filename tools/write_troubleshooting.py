"""Writes the sections of docs/how-to/troubleshooting.md from the table that `explain` knows.

The words of errors, what they mean and what to run next stand in one place, the package's
``explain/kinds.py`` and ``explain/messages.py``. `tests/repo/test_troubleshooting.py` fails where
the page is not what this writes.

    python tools/write_troubleshooting.py
"""

from __future__ import annotations

import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from pytest_cudafork.explain.kinds import KINDS, Kind  # noqa: E402
from pytest_cudafork.explain.messages import MESSAGES  # noqa: E402

PAGE = PROJECT / "docs" / "how-to" / "troubleshooting.md"
BEGIN, END = "<!-- Written by `python tools/write_troubleshooting.py`. -->", "<!-- end of it -->"

NVIDIA = "https://docs.nvidia.com/dl-cuda-graph/troubleshooting/"
MORE = {
    "told-already": "[Read a failure](read-a-failure.md)",
    "poisoned-child": "[What is a touch?](../explanation/what-is-a-touch.md) · "
    "[Keep your library fork-safe in CI](imports-in-ci.md)",
    "initialization-failed": "[What is a touch?](../explanation/what-is-a-touch.md)",
    "capture-refused": "[Test captured CUDA graphs](graph-capture.md) · NVIDIA: "
    f"[Capture failures]({NVIDIA}capture-failures.html)",
    "capture-broken": f"NVIDIA: [Debugging strategies]({NVIDIA}debugging-strategies.html)",
    "random-numbers-after-a-capture": "[Keep one sick GPU from failing a thousand tests]"
    f"(gpu-health.md) · NVIDIA: [Capture failures]({NVIDIA}capture-failures.html)",
    "no-gpu": "[Test code for GPUs that are not there](phantom-gpus.md)",
    "spawn-forced": "[See that tests run as they were meant to](intent.md)",
    "consequence": "[Find the line in a script or a server](run-a-program.md)",
}
"""What else to read, for kinds that have a page."""


def cell(text: str) -> str:
    """Return a text as it may stand in a table."""
    return text.replace("|", "\\|")


def step(text: str) -> str:
    """Return one thing to do: a command with what it does, or a sentence."""
    text = text.format(program="app.py")
    command, _, remark = text.partition("    # ")
    if remark:
        return f"- `{command}`: {remark}"
    return f"- {text}"


def section(kind: Kind) -> str:
    """Return the section of one kind of error."""
    messages = [message for message in MESSAGES if message.kind is kind]
    lines = [f"## {kind.title[0].upper()}{kind.title[1:]}", ""]
    lines += ["| message | of |", "|---|---|"]
    lines += [f"| `{cell(message.words)}` | {cell(message.library)} |" for message in messages]
    lines += ["", f"**Cause.** {kind.meaning}", ""]
    if kind.unseen:
        lines += [f"**The traceback does not show** {kind.unseen}.", ""]
    lines += ["**To find the line, and to repair it:**", ""]
    lines += [*(step(text) for text in kind.next), ""]
    if kind.name in MORE:
        lines += [MORE[kind.name], ""]
    return "\n".join(lines)


def written() -> str:
    """Return the page as it must be."""
    text = PAGE.read_text(encoding="utf-8")
    before, after = text[: text.index(BEGIN)], text[text.index(END) :]
    return f"{before}{BEGIN}\n\n" + "\n".join(section(kind) for kind in KINDS) + f"\n{after}"


def main() -> int:
    """Write the page."""
    PAGE.write_text(written(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

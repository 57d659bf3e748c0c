"""Draws what a failing session prints: docs/images/first_failure.svg, the picture of the README.

The session is a real one, of ``docs/examples/test_first.py``. What the picture says is compared
with a session in ``tests/repo/test_draw_session.py``; where they differ, run this again.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
EXAMPLE = PROJECT / "docs" / "examples" / "test_first.py"
PICTURE = PROJECT / "docs" / "images" / "first_failure.svg"
SHOWN = ("pytest", "--cuda-fork-check", EXAMPLE.name)
ARGUMENTS = ("--cuda-fork-check", "-q", "--no-header", "-p", "no:cacheprovider", EXAMPLE.name)
COLUMNS = 100
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def session(folder: Path) -> str:
    """Run the example as a machine without a GPU would, and return what is printed."""
    shutil.copy(EXAMPLE, folder)
    removed = ("PYTEST_", "_CUDAFORK_", "NO_COLOR", "FORCE_COLOR", "CI", "BUILD_NUMBER")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(removed)}
    environment |= {"COLUMNS": str(COLUMNS), "PYTEST_CUDA_FORK_DEVICE": "phantom"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--color=yes", *ARGUMENTS],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 1:
        raise SystemExit(f"the example did not fail as it should:\n{done.stdout}{done.stderr}")
    return done.stdout


def words(text: str) -> str:
    """Return what two sessions have in common: no colors, blanks, numbers or lengths of rules."""
    plain = re.sub(r"\s|\u00a0", "", _ESCAPE.sub("", text))
    return re.sub(r"([=_])\1+", r"\1", re.sub(r"\d+(\.\d+)?", "0", plain))


def drawn(output: str) -> str:
    """Return the picture of a session's output."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text(f"$ {' '.join(SHOWN)}", style="bold"))
    console.print(Text.from_ansi(output.rstrip()))
    picture = console.export_svg(title="no GPU here", unique_id="session")
    # No fonts from elsewhere: a picture that asks a server for them is shown without by some.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.S)
    return "\n".join(line.rstrip() for line in picture.splitlines()) + "\n"


def main() -> int:
    """Run the session and write the picture."""
    with tempfile.TemporaryDirectory(prefix="draw-session-") as folder:
        output = session(Path(folder))
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(drawn(output), encoding="utf-8")
    sys.stdout.write(f"{PICTURE.relative_to(PROJECT)} is drawn\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

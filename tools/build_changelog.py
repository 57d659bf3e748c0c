"""Joins the fragments in changelog.d into a section of CHANGELOG.md."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

TYPES = {"feature": "New", "change": "Changed", "fix": "Fixed", "removal": "Removed"}
TITLE = "# Changelog\n\n"


class FragmentError(Exception):
    """A fragment is malformed; the text names it and the rule."""


def read(path: Path) -> tuple[str, str]:
    """Return the type and the text of a fragment.

    Raises:
        FragmentError: its name or its text is not as it should be.

    """
    parts = path.name.split(".")
    if len(parts) != 3:
        raise FragmentError(f"{path.name}: call it NAME.TYPE.md, as in zygote-crash.fix.md")
    kind = parts[1]
    if kind not in TYPES:
        raise FragmentError(f"{path.name}: {kind!r} is not a type: use {', '.join(TYPES)}")
    text = path.read_text(encoding="utf-8").strip()
    if not text:
        raise FragmentError(f"{path.name} is empty: tell users in whole sentences what is new")
    if not (text[0].isupper() or text[0] in "`@"):
        raise FragmentError(f"{path.name}: begin {text[:20]!r} with a capital letter")
    if not text.endswith((".", "`")):
        raise FragmentError(f"{path.name}: end {text[-20:]!r} with a full stop")
    return kind, text


def section(version: str, fragments: list[tuple[str, str]]) -> str:
    """Return the section of one version."""
    lines = [f"## {version}", ""]
    for kind, title in TYPES.items():
        texts = [text for fragment_kind, text in fragments if fragment_kind == kind]
        if texts:
            lines += [f"### {title}", ""]
            lines += ["- " + text.replace("\n", "\n  ") for text in texts]
            lines.append("")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Join the fragments, or only check them."""
    parser = argparse.ArgumentParser(description="Join changelog.d/*.md into CHANGELOG.md.")
    parser.add_argument("version", nargs="?", default="", help="the release, as in 1.2.3")
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument("--project", type=Path, default=Path(__file__).resolve().parent.parent)
    options = parser.parse_args()
    folder = options.project / "changelog.d"
    paths = sorted(path for path in folder.glob("*") if path.name != "README.md")
    try:
        fragments = [read(path) for path in paths]
    except FragmentError as error:
        sys.stderr.write(f"changelog.d: {error}\n")
        return 1
    if options.check:
        return 0
    if not re.fullmatch(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?", options.version):
        sys.stderr.write(f"{options.version!r} is not a version: write it as in 1.2.3\n")
        return 1
    changelog = options.project / "CHANGELOG.md"
    former = changelog.read_text(encoding="utf-8") if changelog.exists() else TITLE
    new = TITLE + section(options.version, fragments) + former.removeprefix(TITLE)
    changelog.write_text(new, encoding="utf-8")
    for path in paths:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())

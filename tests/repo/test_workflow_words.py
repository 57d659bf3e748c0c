"""The project's files speak of the project only: no machine, no registry, no way of working."""

from __future__ import annotations

import re

from tests.repo.sources import PROJECT, tracked_files

# Put together from parts, so that this file does not find itself.
FORBIDDEN = {
    "a path of one machine": rf"(?<![\w./-])/(?:{'|'.join(('work', 'root', 'home', 'Users'))})/\w",
    "the host of a package registry": r"(?:{})".format(
        "|".join(["pypi" + r"\.org", "pythonhosted" + r"\.org", "download" + r"\.pytorch"])
    ),
    "an option that names an index": "--(?:extra-)?index" + "-url",
}
BINARY = {".safetensors", ".png", ".gz", ".so"}


def test_no_file_names_a_machine_or_a_registry() -> None:
    found = []
    for path in tracked_files():
        if path.suffix in BINARY:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        for what, pattern in FORBIDDEN.items():
            for match in re.finditer(pattern, text):
                line = text.count("\n", 0, match.start()) + 1
                found.append(f"{path.relative_to(PROJECT)}:{line}: {what}: {match[0]!r}")
    assert not found, "\n".join(found)


def test_no_file_that_was_built_is_tracked() -> None:
    built = {".so", ".pyc", ".whl"}
    found = [path for path in tracked_files() if path.suffix in built or ".so." in path.name]
    assert not found

"""What is installed, read from files: nothing is imported, so nothing can touch CUDA."""

from __future__ import annotations

import ast
import importlib.util
import os
from typing import NamedTuple

from pytest_cudafork import distributions


class Installed(NamedTuple):
    """A package as its files show it.

    Attributes:
        folder: Where it lies.
        version: What its metadata say; "" without metadata.
        distribution: The name under which it was installed; "" without metadata.

    """

    folder: str
    version: str = ""
    distribution: str = ""


def find(module: str, *installed_as: str) -> Installed | None:
    """Find a package or module without importing any of it; None where it is not there.

    Args:
        module: Its name as imported, dotted or not.
        *installed_as: The names of the distributions that it may have come with.

    """
    top, _, rest = module.partition(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or [])
    if rest:
        inner = [os.path.join(folder, *rest.split(".")) for folder in folders]
        folders = [path for path in inner if os.path.isdir(path)]
        if not folders:
            return None
    folder = folders[0] if folders else os.path.dirname(spec.origin or "")
    for name in installed_as:
        version = distributions.version_of(name)
        if version:
            return Installed(folder, version, name)
    return Installed(folder)


def assigned_texts(path: str) -> dict[str, str]:
    """Return what a file of Python assigns at its top, as far as it is a text or None ("").

    Raises:
        OSError: It cannot be read.
        SyntaxError, ValueError: It is no Python.

    """
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets: list[ast.expr] = node.targets
            value: ast.expr | None = node.value
        elif isinstance(node, ast.AnnAssign):
            targets, value = [node.target], node.value
        else:
            continue
        if isinstance(value, ast.Constant) and isinstance(value.value, str | None):
            found.update(
                {one.id: value.value or "" for one in targets if isinstance(one, ast.Name)}
            )
    return found


def required(distribution: str, *names: str) -> list[str]:
    """Return what a distribution requires of others, as in "triton==3.6.0", for this environment.

    Args:
        distribution: Its name.
        *names: Those of the others that are asked for.

    """
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    found = []
    for line in distributions.requirements_of(distribution):
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        holds = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if holds and canonicalize_name(requirement.name) in names:
            found.append(f"{requirement.name}{requirement.specifier}")
    return found


def satisfies(requirement: str, version: str) -> bool:
    """Whether a version is one that a requirement without markers allows."""
    from packaging.requirements import Requirement
    from packaging.version import InvalidVersion

    try:
        return Requirement(requirement).specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return False

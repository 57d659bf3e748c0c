"""Which modules are tried in the fork server first: what many modules of the package import."""

from __future__ import annotations

from pathlib import Path

from pytest_cudafork.imports.audit.preloads import preloads_of
from pytest_cudafork.imports.values.targets import FoundModule
from tests.support.imports import write_package


def found(folder: Path, files: dict[str, str]) -> list[FoundModule]:
    write_package(folder, "pkg", files)
    modules = []
    for key in sorted(files):
        name = f"pkg.{key.replace('/', '.')}".removesuffix(".__init__")
        modules.append(FoundModule(name, str(folder / f"pkg/{key}.py"), key.endswith("__init__")))
    return modules


def test_libraries_come_before_the_package_and_that_before_its_modules(tmp_path: Path) -> None:
    modules = found(
        tmp_path,
        {
            "__init__": "",
            "a": "import numpy, json\nfrom pkg.common import x",
            "b": "import numpy as np\nfrom .common import y",
            "sub/__init__": "from ..common import z",
            "sub/c": "    import pkg.rare  # indented: not at import time, or under a condition",
            "common": "import os",
        },
    )
    assert preloads_of(modules) == ["numpy", "pkg", "pkg.common"]


def test_what_few_import_and_the_standard_library_are_left_out(tmp_path: Path) -> None:
    files = {f"m{number}": "import json, os" for number in range(60)}
    files |= {"m0": "import two", "m1": "import two", "__init__": ""}
    assert preloads_of(found(tmp_path, files)) == ["pkg"]


def test_dots_that_lead_out_and_files_that_cannot_be_read_do_no_harm(tmp_path: Path) -> None:
    modules = found(tmp_path, {"__init__": "from ...far import x", "a": "from ....far import x"})
    modules += [FoundModule("pkg.native", "/no/native.so"), FoundModule("pkg.gone", "/no/gone.py")]
    assert preloads_of(modules) == ["pkg"]
    assert preloads_of([]) == []

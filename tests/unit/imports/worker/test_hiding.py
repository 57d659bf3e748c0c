"""Hiding a library: it looks not installed to whoever asks, and the undo leaves no trace."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import textwrap
import types
from collections.abc import Iterator, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.imports.worker.hiding import AlreadyImported, hide, modules_of
from pytest_cudafork.observe.base.after_import import after_import


class Shelf:
    """A folder on ``sys.path`` with distributions in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, distribution: str, *files: str, record: bool = True, top: str = "") -> None:
        for file in files:
            (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / file).touch()
        info = self.folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[hiding.tests]\n{distribution} = os:path\n")
        if top:
            (info / "top_level.txt").write_text(top)
        if record:
            rows = [*files, f"{info.name}/METADATA", f"../../bin/{distribution}"]
            (info / "RECORD").write_text("".join(f"{row},sha256=x,1\n" for row in rows))
        importlib.invalidate_caches()


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    monkeypatch.syspath_prepend(tmp_path)
    shelf = Shelf(tmp_path)
    shelf.put("Hid-den.Lib", "hidden_lib/__init__.py", "hidden_lib/sub.py")
    shelf.put("shown", "shown_lib/__init__.py", "shown_lib/sub.py")
    before = set(sys.modules)
    yield shelf
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("hidden_lib", "shown_lib", "space"):
            del sys.modules[name]


@contextlib.contextmanager
def hidden(*libraries: str) -> Iterator[None]:
    undo = hide(libraries)
    try:
        yield
    finally:
        undo()


def known() -> set[str]:
    return {distribution.metadata["Name"] for distribution in importlib.metadata.distributions()}


def test_an_import_fails_as_that_of_a_missing_module_does(shelf: Shelf) -> None:
    with hidden("hidden_lib"):
        for statement in ("import hidden_lib", "import hidden_lib.sub", "from hidden_lib import x"):
            with pytest.raises(
                ModuleNotFoundError, match=r"^No module named 'hidden_lib'$"
            ) as told:
                exec(statement)
            assert told.value.name == "hidden_lib"
        with pytest.raises(ModuleNotFoundError, match=r"^No module named 'hidden_lib'$"):
            importlib.import_module("hidden_lib")
    importlib.import_module("hidden_lib.sub")


def test_find_spec_returns_none(shelf: Shelf) -> None:
    with hidden("hidden_lib"):
        assert importlib.util.find_spec("hidden_lib") is None
        assert importlib.util.find_spec("shown_lib") is not None
        assert importlib.util.find_spec("shown_lib.sub") is not None
    assert importlib.util.find_spec("hidden_lib") is not None


def test_a_dotted_name_hides_that_part_alone(shelf: Shelf) -> None:
    with hidden("shown_lib.sub"):
        import shown_lib  # type: ignore[import-not-found]

        assert importlib.util.find_spec("shown_lib.sub") is None
        with pytest.raises(ModuleNotFoundError, match=r"^No module named 'shown_lib\.sub'$"):
            importlib.import_module("shown_lib.sub")
        with pytest.raises(ImportError, match="cannot import name 'sub' from 'shown_lib'"):
            exec("from shown_lib import sub")
        assert not hasattr(shown_lib, "sub")


def test_a_name_that_merely_begins_alike_stays(shelf: Shelf) -> None:
    with hidden("hidden", "shown_li"):
        assert importlib.util.find_spec("hidden_lib") is not None
        assert importlib.util.find_spec("shown_lib") is not None


def test_the_distribution_is_not_known(shelf: Shelf) -> None:
    metadata = importlib.metadata
    with hidden("hidden_lib"):
        for spelled in ("Hid-den.Lib", "hid_den_lib", "hid-den-lib"):
            with pytest.raises(metadata.PackageNotFoundError):
                metadata.version(spelled)
            with pytest.raises(metadata.PackageNotFoundError):
                metadata.distribution(spelled)
        assert "Hid-den.Lib" not in known()
        assert "hidden_lib" not in metadata.packages_distributions()
        assert {entry.name for entry in metadata.entry_points(group="hiding.tests")} == {"shown"}
        assert metadata.version("shown") == "1"
    assert metadata.version("hid_den_lib") == "1"
    assert "Hid-den.Lib" in known()


def test_a_distribution_that_brings_more_stays_and_one_of_the_name_goes(shelf: Shelf) -> None:
    shelf.put("brings-two", "hidden_lib2/__init__.py", "hidden_more/__init__.py")
    shelf.put("hidden-lib3", "hidden_lib3/__init__.py", "tests/__init__.py")
    with hidden("hidden_lib2", "hidden_lib3"):
        assert {"brings-two"} == known() & {"brings-two", "hidden-lib3"}
    with hidden("hidden_lib2", "hidden_more"):
        assert "brings-two" not in known()


def test_the_distribution_of_a_dotted_name_is_told_by_its_files(shelf: Shelf) -> None:
    shelf.put("space-tile", "space/tile/__init__.py", "space/tile/ops.py")
    shelf.put("tiles-for-space", f"space/tile/more{EXTENSION_SUFFIXES[0]}")
    shelf.put("space-core", "space/core/__init__.py")
    with hidden("space.tile"):
        assert known() & {"space-tile", "tiles-for-space", "space-core"} == {"space-core"}


def test_top_level_txt_decides_where_there_is_no_record(shelf: Shelf) -> None:
    shelf.put("egg", "old_egg/__init__.py", record=False, top="old_egg\n_old_egg\n")
    shelf.put("silent", "quiet/__init__.py", record=False)
    with hidden("old_egg", "quiet"):
        assert {"egg", "silent"} <= known()
    with hidden("old_egg", "_old_egg", "silent"):
        assert not {"egg", "silent"} & known()


def test_an_editable_install_is_told_by_top_level_txt(shelf: Shelf) -> None:
    files = ["__editable__.work-1.pth", "__editable___work_finder.py"]
    shelf.put("work-in-progress", *files, top="wip\n")
    with hidden("wip"):
        assert "work-in-progress" not in known()


def test_modules_in_folders_that_a_pth_file_adds_are_told(shelf: Shelf) -> None:
    files = ["carrier/python/inner/__init__.py", "carrier.pth", "carrier/lib/libinner.so"]
    shelf.put("carrier-dist", *files)
    (shelf.folder / "carrier.pth").write_text("# a remark\nimport os\ncarrier/python\n")
    distribution = importlib.metadata.distribution("carrier-dist")
    assert list(modules_of(distribution)) == ["inner"]
    with hidden("inner"):
        assert "carrier-dist" not in known()


@pytest.mark.parametrize("file", ["METADATA", "RECORD", "top_level.txt"])
@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"\0\0"])
def test_a_distribution_whose_metadata_are_broken_stays_and_does_not_matter(
    shelf: Shelf, file: str, content: bytes | None
) -> None:
    shelf.put("half", "half/__init__.py", top="half\n")
    path = shelf.folder / "half-1.0.dist-info" / file
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with hidden("hidden_lib"):
        names = {entry.name for entry in importlib.metadata.entry_points(group="hiding.tests")}
        assert names == {"half", "shown"}


def test_a_module_that_is_loaded_already_is_an_error_that_names_it() -> None:
    with pytest.raises(AlreadyImported, match=r"json .*imported already: json, json\.decoder"):
        hide(["json"])
    with pytest.raises(AlreadyImported, match=r"importlib\.metadata.* and \d+ more"):
        hide(["importlib.metadata", "surely_nobody", "os", "pytest", "json"])
    assert importlib.util.find_spec("surely_nobody") is None


@pytest.mark.parametrize("name", ["", "flash-attn", "a..b", "a b"])
def test_what_is_no_module_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no module name"):
        hide([name])


class LateFinder:
    """A finder that user code puts in, and that finds by itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, path or [self.folder])

    def find_distributions(self, context: Any = None) -> Iterator[importlib.metadata.Distribution]:
        where = importlib.metadata.DistributionFinder.Context(
            name=None if context is None else context.name, path=[self.folder]
        )
        return iter(importlib.metadata.MetadataPathFinder.find_distributions(where))


@pytest.mark.parametrize("first", [True, False])
def test_finders_that_come_later_find_nothing_of_it(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, *, first: bool
) -> None:
    finder = LateFinder(shelf.folder)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(shelf.folder)])
    importlib.invalidate_caches()
    with hidden("hidden_lib"):
        sys.meta_path.insert(0 if first else len(sys.meta_path), finder)
        try:
            assert importlib.util.find_spec("hidden_lib") is None
            with pytest.raises(ModuleNotFoundError, match=r"^No module named 'hidden_lib'$"):
                importlib.import_module("hidden_lib")
            with pytest.raises(importlib.metadata.PackageNotFoundError):
                importlib.metadata.version("hid-den-lib")
            assert importlib.util.find_spec("shown_lib") is not None
            assert importlib.metadata.version("shown") == "1"
        finally:
            sys.meta_path.remove(finder)  # as whoever put it in would


def test_sys_meta_path_stays_as_it_is_so_that_tools_find_theirs(shelf: Shelf) -> None:
    meta_path, content = sys.meta_path, list(sys.meta_path)
    with hidden("hidden_lib"):
        assert sys.meta_path is meta_path
        assert [finder for finder in sys.meta_path if finder in content] == content
        assert PathFinder in sys.meta_path
    assert sys.meta_path is meta_path
    assert sys.meta_path == content


def test_a_callback_after_an_import_still_runs(shelf: Shelf) -> None:
    seen: list[types.ModuleType] = []
    undo = after_import("shown_lib", seen.append)
    with hidden("hidden_lib"):
        importlib.import_module("shown_lib")
    undo()
    assert [module.__name__ for module in seen] == ["shown_lib"]


def patchable() -> dict[str, object]:
    bootstrap = sys.modules["_frozen_importlib"]
    owners: Sequence[Any] = (bootstrap, importlib.util, importlib.metadata.Distribution)
    return {f"{owner!r}.{key}": value for owner in owners for key, value in vars(owner).items()}


def test_the_undo_leaves_no_trace_and_may_be_called_twice(shelf: Shelf) -> None:
    before, finders = patchable(), list(sys.meta_path)
    outer = hide(["hidden_lib"])
    inner = hide(["shown_lib"])
    assert importlib.util.find_spec("hidden_lib") is importlib.util.find_spec("shown_lib") is None
    inner()
    assert importlib.util.find_spec("shown_lib") is not None
    assert importlib.util.find_spec("hidden_lib") is None
    outer()
    outer()
    assert patchable() == before
    assert sys.meta_path == finders


def test_a_refused_name_leaves_no_trace() -> None:
    before, finders = patchable(), list(sys.meta_path)
    with pytest.raises(AlreadyImported):
        hide(["json"])
    with pytest.raises(ValueError, match="is no module name"):
        hide(["flash-attn"])
    assert patchable() == before
    assert sys.meta_path == finders


def test_it_holds_in_a_forked_child_and_in_a_fresh_interpreter(shelf: Shelf) -> None:
    code = """
        import os, sys
        from pytest_cudafork.imports.worker.hiding import hide
        hide(["hidden_lib", "shown_lib.sub"])
        pid = os.fork()
        if pid:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        import shown_lib
        for name in ("hidden_lib", "hidden_lib.sub", "shown_lib.sub"):
            try:
                __import__(name)
            except ModuleNotFoundError as error:
                assert error.name in ("hidden_lib", "shown_lib.sub"), error.name
            else:
                os._exit(3)
        os._exit(0)
    """
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, env=env, timeout=240)


BACKPORT = """
import importlib.metadata as stdlib
class Distribution:
    @staticmethod
    def _discover_resolvers():
        return [stdlib.MetadataPathFinder.find_distributions]
def names():
    found = []
    for resolver in Distribution._discover_resolvers():
        found += [d.metadata["Name"] for d in resolver(stdlib.DistributionFinder.Context())]
    return found
"""


def test_the_backport_of_the_metadata_library_is_covered_when_it_is_imported_later(
    shelf: Shelf,
) -> None:
    """The stand-in has the one function that counts, and finders of its own as the original."""
    (shelf.folder / "importlib_metadata.py").write_text(BACKPORT)
    importlib.invalidate_caches()
    if "importlib_metadata" in sys.modules:
        pytest.skip("the backport itself is loaded")
    try:
        with hidden("hidden_lib"):
            backport: Any = importlib.import_module("importlib_metadata")
            assert "shown" in backport.names()
            assert "Hid-den.Lib" not in backport.names()
        assert "Hid-den.Lib" in backport.names()
    finally:
        sys.modules.pop("importlib_metadata", None)


NAMES = st.lists(st.sampled_from("ab"), min_size=1, max_size=3).map(".".join)


@pytest.mark.slow
@given(libraries=st.lists(NAMES, min_size=1, max_size=3), asked=NAMES)
def test_a_name_is_hidden_with_all_below_and_nothing_else(libraries: list[str], asked: str) -> None:
    found = ModuleSpec(asked, None)

    class Everything:
        def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
            return found if name == asked else None

    bootstrap: Any = sys.modules["_frozen_importlib"]
    finder = Everything()
    sys.meta_path.insert(0, finder)
    try:
        with hidden(*libraries):
            seen = bootstrap._find_spec(asked, None)
    finally:
        sys.meta_path.remove(finder)
    expected = any(f"{asked}.".startswith(f"{library}.") for library in libraries)
    assert (seen is None) == expected

"""Finding the modules of a package: what a fresh interpreter can import, and nothing imported."""

from __future__ import annotations

import importlib
import json
import os
import py_compile
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cudafork.imports.audit.discover import UnknownPackage, find_modules
from pytest_cudafork.imports.audit.plan import find_all
from pytest_cudafork.imports.values.targets import FoundModule
from tests.support.imports import write_package

ABI = EXTENSION_SUFFIXES[0]
COMPILED = list(Path(sysconfig.get_config_var("DESTSHARED")).glob("_queue.*"))
Write = Callable[..., Path]


def _compiled() -> Path:
    if not COMPILED:
        pytest.skip("this interpreter has no _queue extension module to copy")
    return COMPILED[0]


def names(package: str, path: Sequence[str | Path], exclude: Sequence[str] = ()) -> list[str]:
    found = find_modules(package, exclude, [str(folder) for folder in path])
    return [module.name for module in found]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(*files: str, below: str = ".") -> Path:
        root = tmp_path / below
        for file in files:
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_text("raise SystemExit('imported')\n")
        return root

    return write


def test_a_package_comes_first_and_its_modules_sorted(write: Write) -> None:
    root = write("pkg/__init__.py", "pkg/b.py", "pkg/a.py", "pkg/sub/__init__.py", "pkg/sub/c.py")
    assert find_modules("pkg", path=[str(root)]) == [
        FoundModule("pkg", str(root / "pkg/__init__.py"), True),
        FoundModule("pkg.a", str(root / "pkg/a.py"), False),
        FoundModule("pkg.b", str(root / "pkg/b.py"), False),
        FoundModule("pkg.sub", str(root / "pkg/sub/__init__.py"), True),
        FoundModule("pkg.sub.c", str(root / "pkg/sub/c.py"), False),
    ]


def test_nothing_is_imported_and_parents_are_not_either(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write("found_pkg/__init__.py", "found_pkg/sub/__init__.py", "found_pkg/sub/m.py")
    monkeypatch.syspath_prepend(root)
    before = set(sys.modules)
    assert [m.name for m in find_modules("found_pkg.sub")] == ["found_pkg.sub", "found_pkg.sub.m"]
    assert not {name for name in set(sys.modules) - before if name.startswith("found_pkg")}


def test_a_module_in_one_file_gives_one_entry(write: Write) -> None:
    root = write("single.py")
    assert find_modules("single", path=[str(root)]) == [
        FoundModule("single", str(root / "single.py"), False)
    ]


def test_what_no_import_statement_can_name_is_left_out(write: Write) -> None:
    files = ["a-b.py", "class.py", "1st.py", "stub.pyi", "__main__.py", "notes.txt", "x.cfg.py"]
    others = ["__pycache__/a.py", "my-data/m.py", "data/values.json", "sub/__main__.py"]
    root = write("pkg/__init__.py", *(f"pkg/{file}" for file in files + others))
    assert names("pkg", [root]) == ["pkg"]


def test_folders_without_init_count_where_a_module_lies_below(write: Write) -> None:
    root = write("ns/deep/er/m.py", "ns/data/values.json")
    found = find_modules("ns", path=[str(root)])
    assert [(m.name, bool(m.path), m.is_package) for m in found] == [
        ("ns", False, True),
        ("ns.deep", False, True),
        ("ns.deep.er", False, True),
        ("ns.deep.er.m", True, False),
    ]


def test_all_portions_of_a_namespace_package_are_seen(write: Write) -> None:
    one = write("ns/a.py", "ns/inner/b.py", below="one")
    two = write("ns/c.py", "ns/inner/d.py", below="two")
    assert names("ns", [one, two]) == [
        *("ns", "ns.a", "ns.c", "ns.inner", "ns.inner.b", "ns.inner.d")
    ]


def test_a_namespace_package_on_sys_path_is_seen(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(write("found_ns/inner/a.py"))
    assert [m.name for m in find_modules("found_ns")] == [
        *("found_ns", "found_ns.inner", "found_ns.inner.a")
    ]


def test_a_regular_package_beats_a_namespace_and_the_first_folder_wins(write: Write) -> None:
    one = write("pkg/only_here.py", below="one")
    two = write("pkg/__init__.py", "pkg/a.py", below="two")
    three = write("pkg/__init__.py", "pkg/b.py", below="three")
    assert names("pkg", [one, two, three]) == ["pkg", "pkg.a"]


def test_compiled_modules_count_once_and_only_for_this_interpreter(write: Write) -> None:
    root = write(
        *(
            "pkg/__init__.py",
            "pkg/fast.py",
            f"pkg/fast{ABI}",
            f"pkg/only{ABI}",
            "pkg/stable.abi3.so",
        ),
        *("pkg/other.cpython-27-x86_64-linux-gnu.so", f"pkg/whole/__init__{ABI}"),
    )
    found = {m.name: m for m in find_modules("pkg", path=[str(root)])}
    assert list(found) == ["pkg", "pkg.fast", "pkg.only", "pkg.stable", "pkg.whole"]
    assert [m.name for m in found.values() if m.path.endswith((ABI, ".abi3.so"))] == list(found)[1:]
    assert found["pkg.fast"].path == str(root / f"pkg/fast{ABI}")
    assert found["pkg.whole"].is_package


@pytest.mark.parametrize(("name", "is_one"), [("_queue", True), ("libother", False)])
def test_a_shared_library_counts_if_it_is_a_module(
    write: Write, name: str, *, is_one: bool
) -> None:
    root = write("pkg/__init__.py")
    shutil.copy(_compiled(), root / f"pkg/{name}.so")
    assert names("pkg", [root]) == (["pkg", f"pkg.{name}"] if is_one else ["pkg"])


@pytest.mark.parametrize("cut", [0, 3, 64, 100, 5000])
def test_a_compiled_file_that_cannot_be_read_counts(write: Write, cut: int) -> None:
    root = write("pkg/__init__.py")
    (root / "pkg/broken.so").write_bytes(_compiled().read_bytes()[:cut])
    assert names("pkg", [root]) == ["pkg", "pkg.broken"]


def test_modules_without_source_count(write: Write) -> None:
    root = write("pkg/__init__.py", "pkg/old.py")
    source = root / "pkg/old.py"
    py_compile.compile(str(source), cfile=str(source.with_suffix(".pyc")), doraise=True)
    source.unlink()
    assert names("pkg", [root]) == ["pkg", "pkg.old"]


def test_a_package_in_a_zip_file_is_seen(write: Write, tmp_path: Path) -> None:
    root = write("in/pkg/__init__.py", "in/pkg/a.py", "in/pkg/sub/__init__.py", "in/pkg/sub/b.py")
    archive = shutil.make_archive(str(tmp_path / "code"), "zip", root)
    assert names("pkg", [f"{archive}/in"]) == ["pkg", "pkg.a", "pkg.sub", "pkg.sub.b"]
    assert find_modules("pkg.sub", path=[f"{archive}/in"])[0].path.startswith(archive)


def test_a_zip_file_that_is_broken_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "code.zip").write_bytes(b"PK\x03\x04 no zip")
    with pytest.raises(UnknownPackage):
        names("pkg", [tmp_path / "code.zip"])


def test_links_that_lead_back_end_and_others_are_followed(write: Write) -> None:
    root = write("pkg/__init__.py", "pkg/a/__init__.py", "pkg/a/m.py", "elsewhere/n.py")
    (root / "pkg/a/up").symlink_to(root / "pkg", target_is_directory=True)
    (root / "pkg/self").symlink_to("self")
    (root / "pkg/gone.py").symlink_to(root / "nowhere.py")
    (root / "pkg/other").symlink_to(root / "elsewhere", target_is_directory=True)
    assert names("pkg", [root]) == ["pkg", "pkg.a", "pkg.a.m", "pkg.other", "pkg.other.n"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_that_may_not_be_read_is_skipped(write: Write) -> None:
    root = write("pkg/__init__.py", "pkg/a.py", "pkg/locked/m.py")
    (root / "pkg/locked").chmod(0)
    try:
        assert names("pkg", [root]) == ["pkg", "pkg.a"]
    finally:
        (root / "pkg/locked").chmod(0o700)


def test_a_folder_that_cannot_be_listed_is_skipped(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write("pkg/__init__.py", "pkg/a.py", "pkg/locked/__init__.py", "pkg/locked/m.py")
    scandir = os.scandir

    def refuse(folder: str) -> Iterator[os.DirEntry[str]]:
        if str(folder).endswith("locked"):
            raise PermissionError(13, "Permission denied", folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    assert names("pkg", [root]) == ["pkg", "pkg.a", "pkg.locked"]


class EditableFinder:
    """What an editable install puts in front: packages whose folders lie anywhere."""

    def __init__(self, **folders: Path) -> None:
        self.folders = folders

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        folder = self.folders.get(name.replace(".", "__"))
        return None if folder is None else PathFinder.find_spec(name, [str(folder)])


def test_what_a_finder_of_an_editable_install_knows_is_found(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write("editable/__init__.py", "editable/m.py", "editable/ns/n.py", below="src")
    built = write("built.py", below="build")
    finder = EditableFinder(editable=source, editable__built=built)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    assert [m.name for m in find_modules("editable")] == [
        *("editable", "editable.m", "editable.ns", "editable.ns.n")
    ]
    assert find_modules("editable.built")[0].path == str(built / "built.py")


def test_a_finder_that_stumbles_over_the_parent_does_not_matter(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Delegating:
        def find_spec(self, name: str, path: object, target: object) -> ModuleSpec | None:
            if name.startswith("stumble."):
                return PathFinder.find_spec(name, path)  # type: ignore[arg-type]
            return None

    monkeypatch.setattr(sys, "meta_path", [Delegating(), *sys.meta_path])
    monkeypatch.syspath_prepend(write("stumble/ns/deep/m.py"))
    found = [m.name for m in find_modules("stumble")]
    assert found == ["stumble", "stumble.ns", "stumble.ns.deep", "stumble.ns.deep.m"]


@pytest.mark.parametrize("name", ["sys", "_thread", "marshal"])
def test_a_module_of_the_interpreter_itself_gives_one_entry(name: str) -> None:
    assert find_modules(name) == [FoundModule(name, "", False)]


@pytest.mark.parametrize(
    ("exclude", "left"),
    [
        ([], ["pkg", "pkg.a", "pkg.ns", "pkg.ns.m", "pkg.sub", "pkg.sub.b"]),
        (["pkg.sub"], ["pkg", "pkg.a", "pkg.ns", "pkg.ns.m"]),
        (["pkg.sub.*"], ["pkg", "pkg.a", "pkg.ns", "pkg.ns.m", "pkg.sub"]),
        (["pkg.ns.*"], ["pkg", "pkg.a", "pkg.sub", "pkg.sub.b"]),
        (["*.[ab]"], ["pkg", "pkg.ns", "pkg.ns.m", "pkg.sub"]),
        (["pkg.?", "*.n[!x]*"], ["pkg", "pkg.sub", "pkg.sub.b"]),
        (["pkg"], []),
        (["pkg*"], []),
    ],
)
def test_patterns_leave_out_what_they_match_with_all_below(
    write: Write, exclude: list[str], left: list[str]
) -> None:
    root = write(
        "pkg/__init__.py", "pkg/a.py", "pkg/sub/__init__.py", "pkg/sub/b.py", "pkg/ns/m.py"
    )
    assert names("pkg", [root], exclude) == left


def test_a_pattern_for_a_parent_or_for_all_of_a_namespace_leaves_nothing(write: Write) -> None:
    root = write("pkg/sub/b.py")
    assert names("pkg.sub", [root], ["pkg"]) == []
    assert names("pkg.sub", [root], ["*.b"]) == []


@pytest.mark.parametrize("pattern", ["", " ", "pkg/sub", "pkg.[ab", "pkg sub", "pkg-sub", "a,b"])
def test_a_pattern_that_can_match_nothing_is_refused(write: Write, pattern: str) -> None:
    with pytest.raises(ValueError, match="can match no module name"):
        names("pkg", [write("pkg/__init__.py")], [pattern])


@pytest.mark.parametrize("name", ["", "a..b", ".a", "a.", "a b", "a/b", "class", "a.b-c", "*"])
def test_what_is_no_module_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"empty|is no module name"):
        find_modules(name)


def test_the_module_that_is_a_program_is_refused_by_name(write: Write) -> None:
    with pytest.raises(ValueError, match="is left out"):
        names("pkg.__main__", [write("pkg/__init__.py", "pkg/__main__.py")])


def test_an_unknown_package_is_told_with_a_close_match(write: Write) -> None:
    root = write("attention/__init__.py", "attention/layer.py", "single.py")
    with pytest.raises(UnknownPackage, match=r"'atention' on .*\(1 entry\).*mean 'attention'"):
        names("atention", [root])
    with pytest.raises(UnknownPackage, match=r"'attention' \(.*mean 'attention\.layer'\?"):
        names("attention.layers", [root])
    with pytest.raises(UnknownPackage, match=r"'atention' .*mean 'attention'"):
        names("atention.layer", [root])
    with pytest.raises(UnknownPackage, match="'single' is a module, not a package"):
        names("single.part", [root])
    with pytest.raises(UnknownPackage, match=r"search path \(\d+ entries\).*mean 'hypothesis'"):
        find_modules("hypotesis")
    with pytest.raises(UnknownPackage, match=r"layer' or 'attention\.layer2'\?"):
        names("attention.layr", [write("attention/layer2.py")])
    with pytest.raises(UnknownPackage, match=r"has no module 'nope'\.$"):
        names("attention.nope", [root])


def test_only_a_close_name_is_taken_for_what_was_meant() -> None:
    with pytest.raises(UnknownPackage) as unknown:
        find_modules("nope")
    assert "mean" not in str(unknown.value), "opcode is in the standard library"
    assert "meta_path" not in str(unknown.value)


def test_a_folder_here_is_named_only_where_it_is_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(tmp_path, "here", {"__init__": ""})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownPackage, match=r"The folder 'here' is here, but not on the module"):
        find_all(["here.nope"], [])
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UnknownPackage, match=r"The package 'here' \(.*\) has no module 'nope'\.$"):
        find_all(["here.nope"], [])


def test_a_folder_without_modules_is_no_package(write: Write) -> None:
    with pytest.raises(UnknownPackage, match="a folder without a Python module"):
        names("data", [write("data/values.json")])


def test_the_name_of_a_distribution_is_told_from_what_is_imported() -> None:
    with pytest.raises(ValueError, match=r"'pytest-xdist' is imported as .*'xdist'"):
        find_modules("pytest-xdist")
    with pytest.raises(UnknownPackage, match="may be called otherwise"):
        find_modules("surely_nobody_has_this")


@pytest.mark.parametrize("metadata", [None, b"\xff\xfe"])
def test_distributions_whose_metadata_are_broken_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metadata: bytes | None
) -> None:
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "top_level.txt").write_text("broken")
    if metadata is not None:
        (info / "METADATA").write_bytes(metadata)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UnknownPackage, match="no module 'not_there_at_all'"):
        find_modules("not_there_at_all")
    with pytest.raises(ValueError, match=r"'pytest-xdist' is imported as .*'xdist'"):
        find_modules("pytest-xdist")


def test_a_real_compiled_module_below_a_namespace_is_found_and_imports(
    tmp_path: Path, importable: Importable
) -> None:
    source = _compiled()
    (tmp_path / "ns").mkdir()
    shutil.copy(source, tmp_path / "ns" / source.name)
    assert names("ns", [tmp_path]) == ["ns", "ns._queue"] == sorted(importable([tmp_path], "ns"))


# What a fresh interpreter can import: it tries every name of the small alphabet that the random
# trees are made of, and a package only counts if it has a file or something below it has. Each
# answer comes from a fork of an interpreter that has imported nothing else.
ALPHABET = ("a", "b", "c")
ORACLE = """
import importlib, json, os, sys, zlib

def answer(path, top, names):
    sys.path[:] = path
    left, real, spaces = [top], [], []
    while left:
        name = left.pop()
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        (spaces if getattr(module, "__file__", None) is None else real).append(name)
        left += [f"{name}.{short}" for short in names]
    return real + [s for s in spaces if any(r.startswith(s + ".") for r in real)]

for line in sys.stdin:
    if os.fork() == 0:
        try:
            told = answer(*json.loads(line))
        except BaseException as error:
            told = [repr(error)]
        print(json.dumps(told), flush=True)
        os._exit(0)
    os.wait()
"""
Importable = Callable[[Sequence[Path], str], set[str]]


@pytest.fixture(scope="module")
def importable() -> Iterator[Importable]:
    command = [sys.executable, "-I", "-S", "-B", "-c", ORACLE]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]

        def ask(path: Sequence[Path], top: str) -> set[str]:
            request = [[str(folder) for folder in path], top, [*ALPHABET, "_queue"]]
            process.stdin.write(f"{json.dumps(request)}\n")
            process.stdin.flush()
            return set(json.loads(process.stdout.readline()))

        yield ask


FILES = st.sampled_from(
    [
        *("a.py", "b.py", "c.py", "a.pyc", "b.pyc", "__init__.py", "__init__.pyc", "__main__.py"),
        *("a.pyi", "c.txt", "a-b.py", "class.py", "b.cpython-27-x86_64-linux-gnu.so"),
    ]
)
TREES = st.recursive(
    st.dictionaries(FILES, st.none(), max_size=3),
    lambda below: st.dictionaries(
        st.one_of(FILES, st.sampled_from([*ALPHABET, "__pycache__", "a-b", "if"])),
        st.one_of(st.none(), below),
        max_size=5,
    ),
    max_leaves=8,
)


def plant(root: Path, tree: dict[str, object], compiled: bytes) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for name, below in tree.items():
        if isinstance(below, dict):
            # A folder may bear the name of a file, as in ``a.py/``.
            plant(root / name, below, compiled)
        elif name.endswith(".pyc"):
            (root / name).write_bytes(compiled)
        elif not (root / name).exists():
            (root / name).write_text("")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    source = tmp_path_factory.mktemp("compiled") / "m.py"
    source.write_text("")
    target = source.with_suffix(".pyc")
    py_compile.compile(str(source), cfile=str(target), doraise=True)
    return target.read_bytes()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(portions=st.lists(TREES, min_size=1, max_size=2), zipped=st.booleans())
def test_exactly_what_a_fresh_interpreter_can_import_is_found(
    compiled: bytes, importable: Importable, portions: list[dict[str, object]], zipped: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = []
        for number, tree in enumerate(portions):
            root = Path(folder, str(number))
            plant(root, {"top": tree}, compiled)
            if zipped:
                path.append(Path(shutil.make_archive(f"{root}-packed", "zip", root)))
            else:
                path.append(root)
        expected = importable(path, "top")
        try:
            found = names("top", path)
        except UnknownPackage:
            assert expected == set()
            return
        assert found[0] == "top"
        assert found[1:] == sorted(set(found[1:]))
        assert set(found) == expected
        for module in find_modules("top", path=[str(folder) for folder in path]):
            below = [n for n in found if n == module.name or n.startswith(f"{module.name}.")]
            assert names(module.name, path) == below
    importlib.invalidate_caches()

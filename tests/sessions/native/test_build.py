"""Building the native libraries: clean under warnings, optional, never stale."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.native import ROOT

NATIVE = ROOT / "pytest_cudafork/observe/driver/native"
AT_START = "pytest_cudafork_run.pth"
LIB = "pytest_cudafork/observe/driver/native/lib/"
QUICKLY = "-O0"
"""For builds of which nothing is run."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make a copy of what the build needs, with a library of an earlier build lying about."""
    copy = tmp_path / "project"
    shutil.copytree(
        ROOT / "pytest_cudafork",
        copy / "pytest_cudafork",
        ignore=shutil.ignore_patterns("__pycache__", "lib"),
    )
    for name in ("pyproject.toml", "setup.py", "LICENSE", "README.md", "MANIFEST.in", AT_START):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, copy / name)
    (copy / "README.md").touch()
    stale = copy / LIB / "cuda" / "libcuda.so.1"
    stale.parent.mkdir(parents=True)
    stale.write_text("stale", encoding="utf-8")
    (copy / LIB / "libold.so").write_text("stale", encoding="utf-8")
    return copy


def build(project: Path, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("setuptools", minversion="77")
    return subprocess.run(
        [sys.executable, "-W", "ignore", "setup.py", *command],
        cwd=project,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **env},
    )


def needs_compiler() -> str:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler here")
    return compiler


def wheel(project: Path) -> tuple[str, list[str]]:
    (path,) = project.glob("dist/*.whl")
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        (record,) = (name for name in names if name.endswith(".dist-info/RECORD"))
        assert names.count(AT_START) == 1
        assert f"{AT_START},sha256=" in archive.read(record).decode()
        return path.name, [name for name in names if LIB in name]


WITHOUT_EXECINFO = "CUDAFORK_WITHOUT_EXECINFO"
"""Is defined where there is no execinfo.h, as with musl."""


@pytest.mark.parametrize("musl", [False, True], ids=["glibc", "musl"])
def test_the_sources_compile_without_a_warning(tmp_path: Path, musl: bool) -> None:
    compiler = needs_compiler()
    sources = sorted(NATIVE.glob("*.c"))
    if musl:  # the others are the same text for both
        headers = [*NATIVE.glob("*.h"), *NATIVE.glob("*.inc")]
        assert not any(WITHOUT_EXECINFO in path.read_text() for path in headers)
        sources = [path for path in sources if WITHOUT_EXECINFO in path.read_text()]
        assert sources
    command = [
        compiler,
        "-std=gnu11",
        "-O2",
        "-fPIC",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-c",
        *([f"-D{WITHOUT_EXECINFO}"] if musl else []),
    ]
    done = subprocess.run([*command, *sources], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_wheel_serves_every_python_3_on_its_platform(project: Path) -> None:
    needs_compiler()
    build(project, "-q", "bdist_wheel", CFLAGS=QUICKLY)
    name, libraries = wheel(project)
    assert "-py3-none-linux_" in name
    assert sorted(libraries) == [
        LIB + "cuda/libcuda.so",
        LIB + "cuda/libcuda.so.1",
        LIB + "libcudafork_injection.so",
        LIB + "nvml/libnvidia-ml.so.1",
    ]


@pytest.mark.parametrize("compiler", ["/bin/false", "/nonexistent/cc"])
def test_without_a_compiler_there_is_one_warning_and_a_pure_wheel(
    project: Path, compiler: str
) -> None:
    done = build(project, "-q", "bdist_wheel", CC=compiler)
    name, libraries = wheel(project)
    assert name.endswith("-py3-none-any.whl")
    assert libraries == [], "nothing stale either"
    assert done.stderr.count("WARNING: pytest-cudafork") == 1
    for words in ("not observable", compiler, "apt install gcc", "--no-binary"):
        assert words in done.stderr


def test_a_failed_build_in_place_leaves_no_older_library(project: Path) -> None:
    build(project, "-q", "build_native", "--inplace", CC="/bin/false")
    assert not [path for path in (project / LIB).rglob("*") if path.is_file()]


@pytest.mark.parametrize("compiler", ["cc", "/bin/false"])
def test_an_editable_install_compiles_into_the_source_tree(project: Path, compiler: str) -> None:
    if compiler == "cc":
        compiler = needs_compiler()
    build(project, "-q", "editable_wheel", "--dist-dir", "dist", CC=compiler, CFLAGS=QUICKLY)
    assert wheel(project)[1] == []
    made = {path.name for path in (project / LIB).rglob("*.so*")}
    names = {"libcuda.so", "libcuda.so.1", "libcudafork_injection.so", "libnvidia-ml.so.1"}
    assert made - {"libold.so"} == (set() if compiler == "/bin/false" else names)
    assert_record_is_right(project)
    loaded, file = after_start(project)
    assert file == str(project / "pytest_cudafork" / "__init__.py")
    assert "'pathlib'" not in loaded, "each start of Python would wait for it"


def assert_record_is_right(project: Path) -> None:
    (path,) = project.glob("dist/*.whl")
    with zipfile.ZipFile(path) as archive:
        (record,) = (name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
        rows = list(csv.reader(archive.read(record).decode().splitlines()))
        assert sorted(row[0] for row in rows) == sorted(archive.namelist())
        for name, digest, size in rows:
            content = archive.read(name)
            sha256 = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()
            expected = "sha256=" + sha256.rstrip("="), str(len(content))
            assert name == record or (digest, size) == expected


def after_start(project: Path) -> list[str]:
    """What a Python with the wheel alone has loaded when it starts, and our package's file."""
    (path,) = project.glob("dist/*.whl")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(project / "site")
    looks = "import site, sys; site.addsitedir(sys.argv[1]); print(sorted(sys.modules)); "
    finds = "import pytest_cudafork; print(pytest_cudafork.__file__)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", looks + finds, str(project / "site")],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_the_sdist_holds_the_sources_and_no_library(project: Path) -> None:
    build(project, "-q", "sdist")
    (path,) = project.glob("dist/*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    sources = {p.name for p in NATIVE.iterdir() if p.suffix in {".c", ".h", ".inc"}}
    assert {f"pytest_cudafork/observe/driver/native/{name}" for name in sources} <= names
    assert {"setup.py", AT_START} <= names
    assert not {name for name in names if name.startswith(LIB) and "so" in name}


def test_the_sdist_is_the_same_byte_for_byte_at_any_time(project: Path) -> None:
    made = []
    for time in (1_600_000_000, 1_650_000_000):
        for path in project.rglob("*"):
            os.utime(path, (time, time))
        build(project, "-q", "sdist", SOURCE_DATE_EPOCH="1700000000")
        (archive,) = project.glob("dist/*.tar.gz")
        made.append(archive.read_bytes())
        archive.unlink()
    assert made[0] == made[1]
    with tarfile.open(fileobj=io.BytesIO(made[0])) as entries:
        assert {entry.mtime for entry in entries} == {1_700_000_000}


def test_the_list_of_entry_points_is_what_the_headers_say() -> None:
    needs_compiler()
    includes = [Path("/usr/local/cuda/include")]
    spec = importlib.util.find_spec("triton")
    if spec is not None and spec.origin:
        includes.append(Path(spec.origin).parent / "backends/nvidia/include")
    if len(includes) < 2 or not all((path / "cuda.h").exists() for path in includes):
        pytest.skip("needs the headers of CUDA 13.0 and of Triton 3.9")
    texts = [(path / "cuda.h").read_text(errors="replace") for path in includes]
    if ["CUDA_VERSION 13000" in texts[0], "CUDA_VERSION 13010" in texts[1]] != [True, True]:
        pytest.skip("the list was made from CUDA 13.0 and 13.1")
    script = [sys.executable, str(ROOT / "tools/generate_entry_points.py"), "--check"]
    done = subprocess.run([*script, *map(str, includes)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

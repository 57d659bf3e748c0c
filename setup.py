"""Builds the native libraries; everything else about the package is in pyproject.toml.

They contain no Python API, so one build serves every Python version (the wheel's tag is
`py3-none-<platform>`). Without a compiler the package still builds: it is then a pure Python wheel
that sees less, and says so.
"""

# Without types-setuptools the base classes below are Any; both ways are to pass.
# mypy: disable-error-code="import-untyped,misc,attr-defined,no-any-return"

from __future__ import annotations

import base64
import gzip
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel
from setuptools.command.sdist import sdist

SOURCE = "pytest_cudafork/observe/driver/native"
OUTPUT = f"{SOURCE}/lib"
AT_START = "pytest_cudafork_run.pth"
"""What every Python of the environment runs at its start: nothing, unless a variable is set."""

WITNESS = ("witness.c", "record.c", "text.c", "native_stack.c", "python_stack.c", "python_dump.c")
PHANTOM = (
    *("phantom_driver.c", "phantom_answers.c", "phantom_face.c", "entry_points.c"),
    "c_functions.c",
)

#: Library below OUTPUT: its sources, or a library above that it needs, and its SONAME.
LIBRARIES = {
    "cuda/libcuda.so.1": (PHANTOM + WITNESS, "libcuda.so.1"),
    "cuda/libcuda.so": (("libcuda_name.c", "cuda/libcuda.so.1"), "libcuda.so"),
    "nvml/libnvidia-ml.so.1": (("phantom_nvml.c", "phantom_face.c"), "libnvidia-ml.so.1"),
    "libcudafork_injection.so": (
        ("injection.c", "child_patch.c", *WITNESS),
        "libcudafork_injection.so",
    ),
}

#: Bsymbolic: our cuInit calls ours, whatever else is loaded. nodelete: handlers of fork stay valid.
FLAGS = (
    *("-std=gnu11", "-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden"),
    *("-Wall", "-Wextra"),
    *("-Wl,-Bsymbolic", "-Wl,-z,nodelete", "-Wl,-z,relro", "-Wl,-z,now"),
)

#: musl looks for what a library needs by its path, glibc takes what is loaded under the name.
NEEDS = ("-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN")

LOST = """\
pytest-cudafork: its native libraries were NOT built: {reason}
  What is lost: only touches of CUDA made through torch can be seen; those by cuda.bindings, cupy,
  numba, triton, ctypes and other native code are reported as "not observable".
  To have them: install a C compiler (Debian, Ubuntu: apt install gcc libc6-dev) and run
  pip install --force-reinstall --no-deps --no-binary pytest-cudafork pytest-cudafork"""


class BuildError(Exception):
    """The libraries cannot be built here; the text says why."""


def compiler() -> list[str]:
    """Return the command of the C compiler: `$CC`, else the first of cc, gcc, clang.

    Raises:
        BuildError: this is no Linux, or there is none.

    """
    if sys.platform != "linux":
        raise BuildError(f"they exist for Linux only, this is {sys.platform!r}")
    chosen = os.environ.get("CC")
    candidates = [shlex.split(chosen)] if chosen else [["cc"], ["gcc"], ["clang"]]
    for command in candidates:
        if command and shutil.which(command[0]):
            return command
    raise BuildError(f"no C compiler: {' '.join(c[0] for c in candidates)!r} is not to be found")


def compile_all(source: Path, output: Path) -> None:
    """Compile every library from `source` into `output`: all of them, or none.

    Raises:
        BuildError: the compiler failed; what it said is in the text.

    """
    command = compiler()
    extra = shlex.split(os.environ.get("CFLAGS", ""))
    with tempfile.TemporaryDirectory() as scratch:
        for name, (files, soname) in LIBRARIES.items():
            made = Path(scratch, name)
            made.parent.mkdir(parents=True, exist_ok=True)
            needed = [str(Path(scratch, file)) for file in files if file in LIBRARIES]
            inputs = [str(source / file) for file in files if file not in LIBRARIES]
            inputs += [*NEEDS, *needed] if needed else []
            line = [*command, *FLAGS, *extra, f"-Wl,-soname,{soname}", "-o", str(made), *inputs]
            done = subprocess.run([*line, "-ldl"], capture_output=True, text=True, check=False)
            if done.returncode != 0 or not made.exists():
                said = (done.stderr or done.stdout).strip()[-2000:]
                raise BuildError(f"{shlex.join(command)} failed on {name}: {said or 'no output'}")
        for name in LIBRARIES:
            target = output / name
            target.parent.mkdir(parents=True, exist_ok=True)
            # Renamed into place: a process that has the old file mapped keeps it.
            beside = target.with_name(f".{target.name}.{os.getpid()}")
            shutil.copy(Path(scratch, name), beside)
            beside.replace(target)


def remove_files(folder: Path) -> None:
    """Remove every file below `folder`; its folders stay, setuptools may have listed them."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.unlink()


class NativeDistribution(Distribution):
    """Is a platform's own unless its libraries could not be built."""

    native_failed = False

    def has_ext_modules(self) -> bool:
        """Say whether the wheel is for one platform."""
        return not self.native_failed


class BuildNative(Command):
    """Compiles the libraries into the build, or into the source tree for an editable install."""

    description = "compile the native libraries"
    user_options = [("inplace", "i", "compile into the source tree")]  # noqa: RUF012
    boolean_options = ["inplace"]  # noqa: RUF012
    editable_mode = False

    def initialize_options(self) -> None:
        """Set the options to their defaults."""
        self.build_lib: str | None = None
        self.inplace = False

    def finalize_options(self) -> None:
        """Take the build directory from the build command."""
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def _output(self) -> Path:
        inplace = self.inplace or self.editable_mode
        return Path(OUTPUT) if inplace else Path(str(self.build_lib), OUTPUT)

    def run(self) -> None:
        """Compile; on failure warn, leave no library of an earlier build, and go on."""
        try:
            compile_all(Path(SOURCE), self._output())
        except BuildError as error:
            remove_files(self._output())
            self.distribution.native_failed = True
            sys.stderr.write(f"\nWARNING: {LOST.format(reason=error)}\n\n")

    def get_outputs(self) -> list[str]:
        """Return the files that were made."""
        return [
            str(path) for path in (self._output() / name for name in LIBRARIES) if path.exists()
        ]

    def get_output_mapping(self) -> dict[str, str]:
        """Return nothing: an editable install finds the libraries in the source tree."""
        return {}

    def get_source_files(self) -> list[str]:
        """Return what the sdist needs in order to build."""
        return sorted(str(p) for s in ("*.c", "*.h", "*.inc") for p in Path(SOURCE).glob(s))


class BuildPython(build_py):
    """Copies the package without libraries that an editable install left in the source tree.

    With it goes the line that every Python of the environment runs at its start, which does nothing
    unless a variable is set.
    """

    def run(self) -> None:
        """Copy; for an editable install ``EditableWheel`` adds the line."""
        super().run()
        if not self.editable_mode:
            target = Path(str(self.build_lib), AT_START)
            target.parent.mkdir(parents=True, exist_ok=True)
            self.copy_file(AT_START, str(target), preserve_mode=False)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """Return the files that are made."""
        outputs: list[str] = super().get_outputs(include_bytecode)
        return (
            outputs if self.editable_mode else [*outputs, str(Path(str(self.build_lib), AT_START))]
        )

    def find_data_files(self, package: str, src_dir: str) -> list[str]:
        """Return the package's data files."""
        found = super().find_data_files(package, src_dir)
        return [file for file in found if OUTPUT not in Path(file).as_posix()]


class Build(build):
    """The usual steps and the native libraries."""

    sub_commands = [*build.sub_commands, ("build_native", None)]  # noqa: RUF012


class EditableWheel(editable_wheel):
    """An editable install with the same line, which costs other programs next to nothing."""

    def run(self) -> None:
        """Make the wheel, add the line to it, and put our finder in the place of setuptools'."""
        super().run()
        finder = FINDER.format(root=os.getcwd()).encode()
        for wheel in Path(self.dist_dir).glob("*.whl"):
            with zipfile.ZipFile(wheel) as made:
                theirs = [name for name in made.namelist() if name.endswith("_finder.py")]
            line = {AT_START: Path(AT_START).read_bytes()}
            put_into_wheel(wheel, line | dict.fromkeys(theirs, finder))


FINDER = '''\
"""Finds the package in the checkout that it was installed from, at each start of Python."""

import sys
from importlib.machinery import PathFinder


class Checkout:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [{root!r}]) if name == "pytest_cudafork" else None


def install():
    if Checkout not in sys.meta_path:
        sys.meta_path.append(Checkout)
'''
"""Instead of setuptools' finder, which imports pathlib and more: half of an interpreter's start."""


def put_into_wheel(wheel: Path, files: dict[str, bytes]) -> None:
    """Add files to a wheel, or replace those of that name, and enter them into its record."""
    rows = [f"{name},sha256={_digest(content)},{len(content)}\n" for name, content in files.items()]
    made = wheel.with_suffix(".new")
    with (
        zipfile.ZipFile(wheel) as before,
        zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as after,
    ):
        for entry in before.infolist():
            data = before.read(entry)
            if entry.filename.endswith(".dist-info/RECORD"):
                kept = data.decode().splitlines(keepends=True)
                kept = [row for row in kept if row.partition(",")[0] not in files]
                data = "".join([*rows, *kept]).encode()
            if entry.filename not in files:
                after.writestr(entry, data)
        for name, content in files.items():
            after.writestr(name, content)
    made.replace(wheel)


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


class SourceArchive(sdist):
    """An sdist that is the same byte for byte, whoever builds it, if SOURCE_DATE_EPOCH is set."""

    def make_archive(self, base_name: str, kind: str, *args: object, **more: object) -> str:
        """Make it, and take out the times and owners of this machine."""
        path: str = super().make_archive(base_name, kind, *args, **more)
        date = os.environ.get("SOURCE_DATE_EPOCH")
        if date and kind == "gztar":
            write_with_one_date(Path(path), int(date))
        return path


def write_with_one_date(archive: Path, date: int) -> None:
    """Write a .tar.gz anew, all of it of this date and of nobody."""
    made = archive.with_suffix(".new")
    with (
        tarfile.open(archive) as before,
        made.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=date) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as after,
    ):
        for entry in before:
            executable = entry.isdir() or bool(entry.mode & 0o100)
            entry.mtime, entry.mode = date, 0o755 if executable else 0o644
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.pax_headers = {}
            after.addfile(entry, before.extractfile(entry) if entry.isfile() else None)
    made.replace(archive)


class BuildWheel(bdist_wheel):
    """A wheel for every Python 3, on this platform or, without libraries, on any."""

    def run(self) -> None:
        """Build first: whether the libraries came out decides the wheel's kind and name."""
        remove_files(Path(str(self.get_finalized_command("build").build_lib), OUTPUT))
        self.run_command("build")
        self.root_is_pure = not self.distribution.has_ext_modules()
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        """Return the wheel's tag."""
        return ("py3", "none", "any" if self.root_is_pure else super().get_tag()[2])


setup(
    distclass=NativeDistribution,
    cmdclass={
        "bdist_wheel": BuildWheel,
        "build": Build,
        "build_native": BuildNative,
        "build_py": BuildPython,
        "editable_wheel": EditableWheel,
        "sdist": SourceArchive,
    },
)

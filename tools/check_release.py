"""Checks what of a release can be checked on one machine; `make release-check`.

- sdist and wheel, built twice in folders of different names, are the same byte for byte;
- the native libraries compile for other platforms (musl, aarch64, old glibc) without a warning, and
  offer the same names as those for this one; they are not run there;
- the metadata is what a package index takes; the SBOM of an environment with the wheel is written;
- what cibuildwheel will build is what is documented.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from tools.check_wheel import PACKAGE, SKIPPED, WheelError, environment, run  # noqa: E402

NATIVE = PROJECT / PACKAGE / "observe" / "driver" / "native"
COMPILE = """\
import runpy, setuptools, sys
from pathlib import Path
setuptools.setup = lambda **_: None
made = runpy.run_path("setup.py")
made["compile_all"](Path(made["SOURCE"]), Path(sys.argv[1]))
print(*made["LIBRARIES"])
"""
#: What zig calls a platform, and what readelf calls its machine. 2.17 is manylinux2014's glibc.
PLATFORMS = {
    "x86_64-linux-musl": "X86-64",
    "aarch64-linux-musl": "AArch64",
    "x86_64-linux-gnu.2.17": "X86-64",
    "aarch64-linux-gnu.2.17": "AArch64",
}
TAGS = ("manylinux_x86_64", "manylinux_aarch64", "musllinux_x86_64", "musllinux_aarch64")


def built(scratch: Path, name: str, date: str) -> dict[str, str]:
    """Build sdist and wheel in a folder of this name; return the digest of each file."""
    checkout = scratch / name / "checkout"
    shutil.copytree(scratch / "tree", checkout, symlinks=True)
    for path in checkout.rglob("*"):  # a clone has times of its own
        os.utime(path, follow_symlinks=False)
    dist = scratch / name / "dist"
    build = (sys.executable, "-m", "build", "--outdir", dist, checkout)
    run("env", f"SOURCE_DATE_EPOCH={date}", *build, cwd=scratch)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in dist.iterdir()}


def commit_time() -> str:
    """Return the time of the commit, in seconds; of a tree that is none, one that is fixed."""
    asked = ["git", "-C", str(PROJECT), "log", "-1", "--format=%ct"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "1700000000"


def check_same_bytes(scratch: Path) -> Path:
    """Build twice and compare; return the wheel.

    Raises:
        WheelError: the two builds differ.

    """
    left_out = shutil.ignore_patterns(*SKIPPED, "build", "dist", "lib")
    shutil.copytree(PROJECT, scratch / "tree", ignore=left_out, symlinks=True)
    date = commit_time()
    one, other = built(scratch, "one", date), built(scratch, "another-place", date)
    differing = {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}
    if differing:
        raise WheelError(f"two builds of one commit differ: {', '.join(sorted(differing))}")
    return next((scratch / "one" / "dist").glob("*.whl"))


def offered(library: Path) -> set[str]:
    """Return the names that a library defines for others."""
    listed = run("nm", "-D", "--defined-only", library, cwd=library.parent)
    return {line.split()[-1].partition("@")[0] for line in listed.splitlines()}


def check_platform(target: str, scratch: Path) -> None:
    """Compile the native libraries for one platform.

    Raises:
        WheelError: they do not compile, are for another machine, or lack a name.

    """
    output = scratch / target
    zig = f"{sys.executable} -m ziglang cc -target {target}"
    named = ("env", f"CC={zig}", "CFLAGS=-Werror", sys.executable, "-c", COMPILE, output)
    for name in run(*named, cwd=PROJECT).split():
        library, ours = output / name, NATIVE / "lib" / name
        header = run("readelf", "-h", library, cwd=scratch)
        if PLATFORMS[target] not in header:
            raise WheelError(f"{name} for {target} is for another machine:\n{header}")
        if ours.exists() and (differing := offered(library) ^ offered(ours)):
            raise WheelError(f"{name} for {target} offers other names: {sorted(differing)[:20]}")


def check_metadata(scratch: Path) -> None:
    """Let twine read the metadata as an index would.

    Raises:
        WheelError: it does not take it.

    """
    files = sorted((scratch / "one" / "dist").iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *files, cwd=scratch)


def check_sbom(wheel: Path, scratch: Path) -> None:
    """Write the SBOM of an environment with the wheel alone.

    Raises:
        WheelError: it cannot be written, or lacks what the wheel needs.

    """
    python = environment(scratch / "installed", wheel)
    sbom = scratch / "sbom.cdx.json"
    made = ("environment", python, "--output-reproducible", "--output-file", sbom)
    run(sys.executable, "-m", "cyclonedx_py", *made, cwd=scratch)
    names = {part["name"] for part in json.loads(sbom.read_text())["components"]}
    needed = {"pytest-cudafork", "pytest", "pluggy", "cloudpickle", "filelock", "tomli_w"}
    if missing := needed - names - {name.replace("-", "_") for name in names}:
        raise WheelError(f"the SBOM lacks {sorted(missing)}")


def check_cibuildwheel() -> None:
    """Ask cibuildwheel what it would build.

    Raises:
        WheelError: that is not what the documentation says.

    """
    asked = (sys.executable, "-m", "cibuildwheel", "--platform", "linux", "--archs")
    said = run(*asked, "x86_64,aarch64", "--print-build-identifiers", PROJECT, cwd=PROJECT)
    if sorted(said.split()) != sorted(f"cp312-{tag}" for tag in TAGS):
        raise WheelError(f"cibuildwheel would build {said.split()}")


def main() -> int:
    """Check everything; the exit status is 1 when something is wrong."""
    with tempfile.TemporaryDirectory(prefix="check-release-") as folder:
        scratch = Path(folder)
        try:
            check_cibuildwheel()
            print("release-check: cibuildwheel would build what is documented", flush=True)
            for target in PLATFORMS:
                check_platform(target, scratch)
                print(f"release-check: the libraries compile for {target}", flush=True)
            wheel = check_same_bytes(scratch)
            print("release-check: two builds are the same byte for byte", flush=True)
            check_metadata(scratch)
            check_sbom(wheel, scratch)
        except WheelError as error:
            sys.stderr.write(f"release-check: {error}\n")
            return 1
    print("release-check: metadata and SBOM are complete")
    return 0


if __name__ == "__main__":
    sys.exit(main())

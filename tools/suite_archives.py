"""The suites of other packages that the plugin is held against: which, and how they are had.

The tests come from the packages' source archives and run against the installed releases, without
torch; those that need torch are in ``torch_suites``. There are two environments of the same
releases: one has the plugin, the other does not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
PYTEST = "9.1.1"
# What the suites import beside the package itself, and what runs and compares them.
REQUIREMENTS = (
    f"pytest=={PYTEST}",
    "pytest-xdist",
    "pytest-reportlog",
    "asgiref",
    "brotli",
    "cbor2",
    "chardet",
    "cloudpickle",
    "ephemeral-port-reserve",
    "freezegun",
    "greenlet",
    "hypothesis",
    "immutables",
    "more-itertools",
    "msgpack",
    "numpy",
    "pretend",
    "psutil",
    "pytest-asyncio",
    "pytest-mock",
    "pytest-timeout",
    "pytest-trio",
    "python-dateutil",
    "python-dotenv",
    "pyyaml",
    "simplejson",
    "time-machine",
    "tomli-w",
    "tornado",
    "trio",
    "trustme",
    "typeguard",
    "ujson",
    "uvicorn",
    "watchdog",
    "zstandard",
)
WITHOUT_THE_PLUGIN = ("pytest-forked", "pytest-randomly")
"""What tells whose a difference is; in the environment without the plugin alone."""


class SuiteError(Exception):
    """A suite cannot be had or run; the text says why."""


@dataclass(frozen=True)
class Suite:
    """The tests of one release: ``paths`` below its folder, what pytest is given, variables set.

    ``sources`` are the folders that hold the package itself: the installed release stands for it.
    With ``tag`` PyPI has no source archive of the release: one is made by hand from that tag.
    """

    name: str
    version: str
    paths: tuple[str, ...] = ("tests",)
    arguments: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    sources: tuple[str, ...] = ("src",)
    tag: str = ""

    @property
    def requirement(self) -> str:
        """The release as pip takes it."""
        return f"{self.name}=={self.version}"


SUITES = (
    Suite("attrs", "26.1.0"),
    Suite("billiard", "4.3.2", ("t/unit",), sources=("billiard",)),
    Suite("blinker", "1.9.0"),
    Suite("boltons", "26.2.0"),
    Suite("cachetools", "8.0.1"),
    # Their options are for pytest-benchmark.
    Suite("cattrs", "26.2.1", arguments=("--override-ini=addopts=",)),
    Suite("click", "8.5.1"),
    Suite(
        "diskcache",
        "5.6.3",
        # Its options are for plugins, the two files for Django.
        arguments=(
            "--override-ini=addopts=",
            "--ignore=tests/test_djangocache.py",
            "--ignore=tests/test_doctest.py",
        ),
        sources=("diskcache",),
    ),
    Suite("einops", "0.8.2", ("einops/tests",), environment=("EINOPS_TEST_BACKENDS=numpy",)),
    # The file needs eventlet.
    Suite(
        "fasteners",
        "0.20",
        arguments=("--ignore=tests/test_eventlet.py",),
        sources=("fasteners",),
    ),
    # Imports a name of pytest that is gone.
    Suite("flask", "3.1.3", arguments=("--ignore=tests/test_cli.py",)),
    Suite("freezegun", "1.5.5"),
    Suite("h11", "0.16.0", ("h11/tests",)),
    Suite("httpx", "0.28.1"),
    Suite("itsdangerous", "2.2.0"),
    Suite("jinja2", "3.1.6"),
    Suite("joblib", "1.6.0", ("joblib/test",)),
    Suite("loky", "3.7.0", sources=("loky",)),
    Suite("marshmallow", "4.4.0"),
    Suite("more-itertools", "11.2.1"),
    # The rest has 60,000 cases of the same few tests.
    Suite("packaging", "26.3", ("tests/test_tags.py", "tests/test_requirements.py")),
    Suite("pebble", "5.2.3", ("test",), sources=("pebble",)),
    Suite("pexpect", "4.9.0", sources=("pexpect",)),
    Suite("pluggy", "1.7.0", ("testing",)),
    Suite(
        "pyfakefs",
        "6.3.2",
        ("pyfakefs/tests",),
        arguments=("--override-ini=python_files=*_test.py",),
    ),
    Suite("sniffio", "1.3.1", ("sniffio/_tests",)),
    Suite("structlog", "26.1.0"),
    Suite("tenacity", "9.2.1"),
    Suite("tomlkit", "0.15.2"),
    Suite("toolz", "1.2.0", ("toolz/tests",)),
    Suite("werkzeug", "3.1.9"),
)


def run(
    *command: str | Path, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """Run a command, with these variables beside those of this process; return what it printed.

    Raises:
        SuiteError: it did not end with status 0.

    """
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        line = " ".join(str(part) for part in command)
        raise SuiteError(f"{line}\nended with status {done.returncode}:\n{done.stdout[-2000:]}")
    return done.stdout


def python_of(folder: Path, *, plugin: bool) -> Path:
    """Return the interpreter of the environment with the plugin, or of that without it."""
    return folder / ("venv" if plugin else "venv-without") / "bin" / "python"


def prepare(
    folder: Path,
    suites: tuple[Suite, ...],
    requirements: tuple[str, ...] = REQUIREMENTS,
    held: tuple[str, ...] = (),
) -> None:
    """Download the archives and make both environments, as far as they are not there.

    The environment without the plugin has the releases that the other one was given. With ``held``
    these stay as they are, and the suites' releases bring nothing with them.

    Raises:
        SuiteError: pip ended otherwise than with status 0.

    """
    archives = folder / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    quiet = ("-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")
    releases = tuple(suite.requirement for suite in suites)
    held_too: dict[str, str] = {}
    if held:
        constraints = folder / "constraints.txt"
        constraints.write_text("".join(f"{line}\n" for line in held), encoding="utf-8")
        # They hold for what pip builds in environments of its own, too; which of the two is read is
        # a matter of its release.
        held_too = dict.fromkeys(("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"), str(constraints))
    for plugin in (True, False):
        python = python_of(folder, plugin=plugin)
        if not python.exists():
            venv.create(python.parent.parent, with_pip=True, symlinks=True)
        if plugin:
            wanted = (*requirements, *(() if held else releases))
            run(python, *quiet, "install", *wanted, environment=held_too)
            if held:
                run(python, *quiet, "install", "--no-deps", "--only-binary", ":all:", *releases)
            run(python, *quiet, "install", "--force-reinstall", "--no-deps", PROJECT)
            frozen = run(python, "-m", "pip", "freeze").splitlines()
        else:
            same = [line for line in frozen if not line.startswith("pytest-cudafork")]
            alone = ("--no-deps",) if held else ()
            run(python, *quiet, "install", *alone, *same, *WITHOUT_THE_PLUGIN)
    for suite in suites:
        if not suite.tag and not find_archive(archives, suite):
            options = ("--no-binary", suite.name, "--no-deps", "--dest", archives)
            run(python, *quiet, "download", *options, suite.requirement, environment=held_too)


def find_archive(archives: Path, suite: Suite) -> Path | None:
    """Return the source archive of a suite, if it was downloaded."""
    names = {
        f"{name}-{suite.version}.tar.gz" for name in (suite.name, suite.name.replace("-", "_"))
    }
    return next((path for path in archives.glob("*.tar.gz") if path.name in names), None)


def unpack(folder: Path, suite: Suite) -> Path:
    """Unpack a suite's archive afresh and return its root, without the package's own sources.

    The tests import the installed release: the folders of its sources are removed, other layouts
    keep the package where its tests lie inside it.

    Raises:
        SuiteError: the archive was not downloaded, or lacks the tests.

    """
    archive = find_archive(folder / "archives", suite)
    if archive is None:
        made = f", which is made by hand from {suite.tag}" if suite.tag else ""
        raise SuiteError(f"no source archive of {suite.requirement} in {folder / 'archives'}{made}")
    target = folder / "suites" / suite.name
    shutil.rmtree(target, ignore_errors=True)
    with tarfile.open(archive) as file:
        # Not there before Python 3.10.12 and 3.11.4, which unpack all that an archive names.
        file.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        file.extractall(target)
    (root,) = target.iterdir()
    # pytest looks upwards for settings: a suite without any would get those of this checkout.
    (target / "pytest.ini").touch()
    for source in suite.sources:
        shutil.rmtree(root / source, ignore_errors=True)
    for path in suite.paths:
        if not (root / path).exists():
            raise SuiteError(f"{archive.name} has no {path}")
    return root

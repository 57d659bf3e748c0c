"""Runs graph managers of other packages, unmodified, on the software graph, and with planted bugs.

The packages' wheels are downloaded and unpacked, not installed; what they need beside torch is put
into a folder next to them. ``foreign_manager_programs.py`` drives them, on a machine without a GPU.

    python tools/foreign_managers.py [--folder .foreign-managers] [--offline]

The last line is JSON; the exit status is not 0 where a manager as published is accused, or where a
planted bug is not told.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from results_file import parser, publish, table

PROJECT = Path(__file__).resolve().parent.parent
PROGRAMS = Path(__file__).resolve().with_name("foreign_manager_programs.py")
PACKAGES = ("transformers==5.23.0", "sglang==0.5.23")
NEEDED = (
    "filelock",
    "huggingface_hub",
    "msgspec",
    "packaging",
    "psutil",
    "pyyaml",
    "regex",
    "safetensors",
    "tokenizers",
    "tqdm",
)
HEADER = ("manager", "as it is, or with a bug", "outcome", "what was told")
OPTIONS = (
    "--cuda-fork-check=poison",
    "--cuda-fork-device=phantom:sm_90",
    "--cuda-fork-graphs=software",
)


def prepare(folder: Path) -> None:
    """Download and unpack what is not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    wheels, source, needed = folder / "wheels", folder / "packages", folder / "needed"
    command = ("download", "--no-deps", "--only-binary=:all:", "--dest", wheels, *PACKAGES)
    subprocess.run([*pip, *command], check=True)
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(source)
    subprocess.run([*pip, "install", "--target", needed, *NEEDED], check=True)


def run(folder: Path) -> tuple[int, Path, str]:
    """Run the programs; return the exit status, the JUnit report and the output."""
    report = folder.resolve() / "report.xml"
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            str(path.resolve()) for path in (folder / "packages", folder / "needed", PROJECT)
        ),
    }
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", PROGRAMS, *OPTIONS),
            *(f"--junitxml={report}", "-o", "junit_family=xunit1", "--tb=short"),
            *("-c", os.devnull, f"--rootdir={PROGRAMS.parent}"),
        ],
        env=env,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, report, done.stdout


def outcomes(report: Path) -> list[dict[str, str]]:
    """Read what each program came to from the JUnit report.

    Returns:
        A dict each with ``manager``, ``planted``, ``outcome`` ("ok", "not ok") and ``told``.

    """
    found = []
    for case in ElementTree.parse(report).iter("testcase"):
        said = {one.get("name", ""): one.get("value", "") for one in case.iter("property")}
        failed = [one for one in case if one.tag in ("failure", "error", "skipped")]
        found.append(
            {
                "manager": said.get("manager", case.get("name", "")),
                "planted": said.get("planted", "?"),
                "outcome": "not ok" if failed else "ok",
                "told": " ".join(said.get("told", "nothing").split()),
            }
        )
    return found


def rows(found: list[dict[str, str]]) -> list[list[str]]:
    """Return the outcomes as rows of a table in Markdown."""
    return [
        [one["manager"], one["planted"], one["outcome"], one["told"].replace("|", "\\|")]
        for one in found
    ]


def main(arguments: list[str]) -> int:
    """Prepare, run, print."""
    made = parser((__doc__ or "").splitlines()[0])
    made.add_argument("--folder", type=Path, default=Path(".foreign-managers"))
    made.add_argument("--offline", action="store_true", help="use what an earlier call has left")
    options = made.parse_args(arguments)
    if not options.offline:
        prepare(options.folder)
    elif not (options.folder / "packages").is_dir():
        made.error(f"--offline: no earlier call has left packages in {options.folder}")
    status, report, output = run(options.folder)
    if status not in (0, 1):  # it never came to the programs
        print(output)
        return status
    found = outcomes(report)
    if status:
        print(output)
    wrong = sum(one["outcome"] != "ok" for one in found)
    data = {"packages": PACKAGES, "programs": len(found), "not_ok": wrong}
    title = "Graph managers of other packages on the software graph"
    publish("foreign_managers", title, table(HEADER, rows(found)), data, save=options.save)
    return 1 if wrong or status else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Sessions that record what tests cost, and the sessions that are packed by it."""

from __future__ import annotations

import json
import os
import re

import pytest

from pytest_cudafork.gpus.inventory import phantom_machine
from tests.sessions.gpus.test_leases import XDIST, run
from tests.support.sessions import assert_no_crash, outcomes, run_session

LOOKS = """
from pytest_cudafork.gpus import memory

def look(gpus, look=memory.look):
    found = look(gpus)
    with open("looks", "a") as file:
        file.write(".")
    return found

memory.look = look
"""
SUITE = """
import os, time
import pytest

MEMORY = os.environ["_CUDAFORK_PHANTOM_MEMORY"]

def looks():
    return os.path.getsize("looks") if os.path.exists("looks") else 0

def use(gib, device=0):
    begun, before = time.monotonic(), looks()
    with open(MEMORY, "a") as file:
        file.write(f"{device} {os.getpid()} {gib << 30}\\n")
    # the first one may have begun before that
    while os.path.exists("recording") and looks() < before + 2: time.sleep(0.02)
    return time.monotonic() - begun

def use_longer_than(seconds, *args):
    begun = time.monotonic()
    use(*args)
    while os.path.exists("recording") and time.monotonic() - begun < seconds: time.sleep(0.02)

def test_plain(): pass

@pytest.mark.gpus(1)
def test_small():
    seconds = use(10, int(os.environ["CUDA_VISIBLE_DEVICES"]))
    with open("seconds", "w") as file:
        file.write(str(seconds))

@pytest.mark.cuda_isolated
def test_says_nothing(): use_longer_than(2 * float(open("seconds").read()) + 1, 30, 1)

@pytest.mark.gpus(1)
def test_fails(): assert False
"""


def test_a_recorded_run_packs_the_next(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xdist")
    monkeypatch.setenv("_CUDAFORK_PHANTOM_MEMORY", str(pytester.path / "memory"))
    (pytester.path / "memory").touch()
    pytester.makeconftest(LOOKS)
    module = pytester.makepyfile(test_it=SUITE)
    (pytester.path / "recording").touch()
    result = run(pytester, "--cuda-fork-profile=p.json", *XDIST, "-n", "1")
    result.assert_outcomes(passed=3, failed=1)
    tests = json.loads((pytester.path / "p.json").read_text())["tests"]
    known = {test.rpartition("_")[2]: cost for test, cost in tests.items()}
    assert set(known) == {"plain", "small", "nothing"}
    assert (known["small"]["gpus"], known["small"]["vram"]) == (1, 10 << 30)
    assert (known["nothing"]["gpus"], known["nothing"]["vram"]) == (2, 30 << 30)
    assert known["plain"]["vram"] == 0
    assert all(cost["ram"] > 1 << 20 for cost in known.values())
    assert known["small"]["seconds"] > 0.1  # two looks, of five a second
    result.stdout.fnmatch_lines(
        ["*time and memory of tests*", "longest:", "*s  test_it.py::test_says_nothing"]
    )
    result.stdout.fnmatch_lines(
        ["largest in GPU memory:", "*30 GiB  test_it.py::test_says_nothing on each of 2 GPUs"]
    )
    (pytester.path / "recording").unlink()
    sees_both = "assert os.environ['CUDA_VISIBLE_DEVICES'] == '0,1'"
    module.write_text(re.sub(r"(test_says_nothing\(\)): .*", rf"\1: {sees_both}", SUITE))
    packed = run(pytester, "--cuda-fork-pack=p.json")
    packed.assert_outcomes(passed=3, failed=1)
    assert list(outcomes(packed)) == ["test_fails", "test_says_nothing", "test_small", "test_plain"]


@pytest.mark.parametrize(
    ("option", "visible"),
    [("0", None), ("1", "0"), ("2", "0,1")],
    ids=["no GPU", "one", "two"],
)
def test_a_test_that_asks_for_no_gpus_is_not_skipped_where_there_are_fewer_than_were_recorded(
    option: str, visible: str | None, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        test_it="import os, pytest\n"
        "def test_all(): raise RuntimeError(f\"sees {os.environ.get('CUDA_VISIBLE_DEVICES')}\")\n"
        "@pytest.mark.gpus(4)\ndef test_four(): pass\n"
        "@pytest.mark.cuda_isolated(env={'CUDA_VISIBLE_DEVICES': '1'})\n"
        "def test_named(): assert os.environ['CUDA_VISIBLE_DEVICES'] == '1'\n"
    )
    models = {gpu.name: gpu.memory for gpu in phantom_machine("sm_90x4").gpus}
    used = {"seconds": 1.0, "gpus": 4, "vram": 30 << 30, "ram": 1}
    tests = {f"test_it.py::test_{name}": used for name in ("all", "four", "named")}
    document = {"pytest_cudafork_profile": 1, "gpus": models, "tests": tests}
    (pytester.path / "p.json").write_text(json.dumps(document))
    result = run(pytester, "--cuda-fork-pack=p.json", f"--cuda-fork-gpus={option}")
    result.assert_outcomes(failed=1, skipped=1, passed=1)
    result.stdout.fnmatch_lines([f"E * RuntimeError: sees {visible}"])
    result.stdout.fnmatch_lines(["*needs 4 GPUs; this session has *"])


def test_a_profile_that_cannot_be_used_is_a_usage_error_and_stays_as_it_is(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile("def test_a(): pass")
    path = pytester.path / "p.json"
    other = {"pytest_cudafork_profile": 1, "gpus": {"NVIDIA L4": 22 << 30}, "tests": {}}
    whole = json.dumps(other)
    for text, words in (
        (whole, "p.json was recorded on another machine: it had NVIDIA L4 (22 GiB), this one has"),
        (whole[:40], "p.json is no profile, or torn"),
    ):
        for option in ("pack", "profile"):
            path.write_text(text)
            face = "--cuda-fork-device=phantom:sm_90"
            args = ("--cuda-fork-check", face, f"--cuda-fork-{option}=p.json")
            result = run_session(pytester, *args)
            assert result.ret == pytest.ExitCode.USAGE_ERROR
            assert_no_crash(result)
            assert words in result.stderr.str()
            assert f"--cuda-fork-{option}: " in result.stderr.str()
            assert path.read_text() == text
    assert not [name for name in os.listdir(pytester.path) if name.startswith("p.json.")]


@pytest.mark.parametrize("workers", [(), pytest.param((*XDIST, "-n", "2"), id="workers")])
def test_the_first_of_sessions_that_record_for_the_next_needs_no_profile(
    workers: tuple[str, ...], pytester: pytest.Pytester
) -> None:
    if workers:
        pytest.importorskip("xdist")
    pytester.makepyfile(
        "import pytest\ndef test_a(): pass\n@pytest.mark.gpus(1)\ndef test_b(): pass"
    )
    for known in ([], ["test_a", "test_b"]):
        names = pytester.path / "p.json"
        assert names.exists() == bool(known)
        result = run(pytester, "--cuda-fork-pack=p.json", "--cuda-fork-profile=./p.json", *workers)
        assert_no_crash(result)
        result.assert_outcomes(passed=2)
        tests = json.loads(names.read_text())["tests"]
        assert sorted(test.rpartition("::")[2] for test in tests) == ["test_a", "test_b"]
    alone = run(pytester, "--cuda-fork-pack=q.json")
    assert alone.ret == pytest.ExitCode.USAGE_ERROR
    assert "record it with --cuda-fork-profile" in alone.stderr.str()


def test_a_profile_that_cannot_be_written_at_the_end_fails_the_session(
    pytester: pytest.Pytester,
) -> None:
    folder = pytester.mkdir("folder")
    pytester.makepyfile(f"""
        import os
        def test_a(): os.rmdir({str(folder)!r})
        """)
    result = run_session(pytester, f"--cuda-fork-profile={folder / 'profile.json'}")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["ERROR: the profile could not be written: *"])

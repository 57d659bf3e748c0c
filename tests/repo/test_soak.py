"""The soak: how its samples are judged, and that it sees what piles up."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def soak(benchmark: Callable[[str], Any]) -> Any:
    """The script, which is no module of a package."""
    return benchmark("soak")


def loop(soak: Any, memory: list[float], off: float = 0.0, **last: int) -> Any:
    same = {"descriptors": 5, "processes": 2, "files": 0}
    samples = [soak.Sample(100 * at, each, **same) for at, each in enumerate(memory, 1)]
    samples[-1] = soak.Sample(samples[-1].turns, samples[-1].memory, **{**same, **last})
    return soak.Loop("a loop", 1.0, samples, off)


def test_memory_that_grows_at_first_and_then_stays_does_not_pile_up(soak: Any) -> None:
    assert soak.complaints(loop(soak, [100, 200, 300, 400, 400, 400, 400, 400])) == []


def test_memory_that_grows_to_the_end_piles_up_less_what_others_keep(soak: Any) -> None:
    growing = [1e8 + 2e5 * at for at in range(10)]
    assert soak.slope(loop(soak, growing).samples) == pytest.approx(2000)
    assert soak.percent(loop(soak, growing)) == pytest.approx(20)
    assert soak.complaints(loop(soak, growing)) == ["memory"]
    assert soak.complaints(loop(soak, growing, off=1950)) == []


def test_a_few_pages_more_are_none(soak: Any) -> None:
    growing = [1e6 + 200 * at for at in range(10)]
    assert soak.percent(loop(soak, growing)) > soak.MOST_PERCENT
    assert soak.complaints(loop(soak, growing)) == []


@pytest.mark.parametrize("name", ["descriptors", "processes", "files"])
def test_one_more_than_in_the_middle_piles_up(soak: Any, name: str) -> None:
    assert soak.complaints(loop(soak, [100.0] * 8, **{name: 9})) == [name]
    text, data = soak.report([loop(soak, [100.0] * 8, **{name: 9})])
    assert f"piles up: {name}" in text
    assert data["loops"]["a loop"]["wrong"] == [name]


def test_a_look_counts_this_process_and_those_below_it(soak: Any, tmp_path: Path) -> None:
    before = soak.look(1, tmp_path)
    (tmp_path / "file").touch()
    read, write = os.pipe()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        kept = bytearray(os.urandom(1 << 22))
        after = soak.look(2, tmp_path)
        child.communicate(b"\n")
    os.close(read)
    os.close(write)
    assert after.files == before.files + 1
    assert after.processes == before.processes + 1
    assert after.descriptors >= before.descriptors + 2
    assert after.memory >= before.memory + len(kept) // 2


def test_pages_of_files_are_not_counted_but_those_of_shared_memory_are(
    soak: Any, tmp_path: Path
) -> None:
    size = 1 << 24
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        pytest.skip("a file of some size, on a disk, is wanted: torch's, and it is not installed")
    before = soak.look(1, tmp_path)
    # not a file of tmp_path: where /tmp is in memory, so are its pages
    with (
        (Path(torch.origin).parent / "lib/libtorch_cpu.so").open("rb") as file,
        mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as library,
    ):
        assert any(library[::4096])
        mapped = soak.look(2, tmp_path)
    with mmap.mmap(-1, size) as shared:
        shared.write(b"x" * size)
        after = soak.look(3, tmp_path)
    assert mapped.memory < before.memory + size // 2
    assert after.memory >= before.memory + size * 3 // 4


@pytest.mark.slow
def test_a_session_is_looked_at_while_it_runs(soak: Any) -> None:
    samples = soak.session(20, "forkserver")
    assert [each.turns for each in samples] == list(range(1, 21))
    assert min(each.processes for each in samples) >= 2  # the server, and a child at times


def test_a_loop_of_no_turns_is_left_out_and_no_loop_at_all_is_an_error() -> None:
    command = [sys.executable, "benchmarks/soak.py", "--tests=0", "--captures=0"]
    done = subprocess.run([*command, "--audits=2"], capture_output=True, text=True, check=False)
    assert [line.split("|")[1].strip() for line in done.stdout.splitlines()[2:3]] == ["audits"]
    done = subprocess.run([*command, "--audits=0"], capture_output=True, text=True, check=False)
    assert (done.returncode, "there is nothing to do" in done.stderr) == (2, True)


def test_a_loop_that_is_too_short_to_show_growth_is_not_judged(
    soak: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for looks, verdict, status in ((2, "too few turns to tell", 1), (3, "nothing piles up", 0)):
        samples = loop(soak, [1e8] * looks).samples
        monkeypatch.setattr(soak, "in_a_process", lambda *_, given=samples: given)
        monkeypatch.setattr(sys, "argv", ["soak.py", "--tests=0", "--audits=0", "--captures=1"])
        assert soak.main() == status
        assert verdict in capsys.readouterr().out


def test_what_torch_keeps_is_taken_off_the_captures_alone(
    soak: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing = loop(soak, [1e8 + 2e5 * at for at in range(10)]).samples
    published: list[dict[str, Any]] = []
    half = loop(soak, [1e8 + 1e5 * at for at in range(10)]).samples  # of two loops by torch alone
    assert len(soak.BY_TORCH) == 2
    monkeypatch.setattr(
        soak, "in_a_process", lambda name, *_: half if name in soak.BY_TORCH else growing
    )
    monkeypatch.setattr(soak, "session", lambda turns, method: growing)
    monkeypatch.setattr(soak, "needs_gpu", lambda made: None)
    monkeypatch.setattr(soak, "publish", lambda *given, **_: published.append(given[3]))
    monkeypatch.setattr(sys, "argv", ["soak.py", "--device=cuda", "--tests=10"])
    assert soak.main() == 1
    (data,) = published
    percent = {name: row["percent"] for name, row in data["loops"].items()}
    assert {name for name, each in percent.items() if each} == {"audits"}
    assert "captures" in percent
    assert len(percent) == 4

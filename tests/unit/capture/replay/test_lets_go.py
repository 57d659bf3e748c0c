"""Graphs are let go of as soon as nobody can use them; and lines are told where files are odd."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

from tests.support.helpers import needs_torch

pytestmark = needs_torch
torch = pytest.importorskip("torch")

from pytest_cudafork import GraphUsageError, ReplayDiffersError  # noqa: E402
from pytest_cudafork import assert_replay_equals_eager as compare  # noqa: E402
from pytest_cudafork.capture.interface.lines import is_foreign, shown  # noqa: E402
from pytest_cudafork.capture.pair.capture_pair import capture_pair as check_pair  # noqa: E402
from pytest_cudafork.capture.replay.cleanup import release  # noqa: E402
from pytest_cudafork.capture.software.backend import SoftwareBackend, SoftwareCapture  # noqa: E402


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[SoftwareCapture]:
    """All graphs that are captured."""
    made: list[SoftwareCapture] = []
    original = SoftwareBackend.capture

    def capture(self: SoftwareBackend, *args: Any, **kwargs: Any) -> SoftwareCapture:
        made.append(original(self, *args, **kwargs))
        return made[-1]

    monkeypatch.setattr(SoftwareBackend, "capture", capture)
    return made


def _is_gone(graph: SoftwareCapture) -> bool:
    return graph._tape is None and graph.recording.result is None


def test_a_failed_comparison_lets_go_of_its_graph(graphs: list[SoftwareCapture]) -> None:
    frozen = [0.0]

    def counts(x: Any) -> Any:
        frozen[0] += 1
        return x + frozen[0]

    with pytest.raises(ReplayDiffersError):
        compare(counts, [torch.ones(4)], backend="software")
    assert [_is_gone(each) for each in graphs] == [True]


def test_a_comparison_that_cannot_be_made_does_so_too(graphs: list[SoftwareCapture]) -> None:
    def breaks() -> None:
        raise KeyError("of the user")

    with pytest.raises(GraphUsageError, match="no tensor"):
        compare(lambda x: None, [torch.ones(4)], backend="software")
    with pytest.raises(KeyError):
        compare(lambda x: x * 2, [torch.ones(4)], vary=[breaks], backend="software")
    x = torch.ones(4)
    with pytest.raises(KeyError):
        check_pair(lambda d, w: (lambda: x * 2, {}), 4, vary=[breaks], backend="software")
    assert len(graphs) == 3
    assert all(_is_gone(each) for each in graphs)


def test_the_fixture_keeps_no_pair_alive_and_lets_go_of_the_last(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import gc, weakref
        import torch
        kept = []

        def test_many(capture_pair):
            x, seen = torch.ones(4), []
            for _ in range(3):
                seen.append(weakref.ref(capture_pair(lambda d, w: (lambda: x * 2, {}), 4).graph))
                gc.collect()
            assert [ref() for ref in seen] == [None] * 3
            kept.append(capture_pair(lambda d, w: (lambda: x * 2, {}), 4))

        def test_the_last():
            assert kept[0].graph.recording.result is None
        """
    )
    pytester.runpytest_subprocess("--cuda-fork-graphs=software").assert_outcomes(passed=2)


def test_a_device_that_is_lost_does_not_hide_what_was_found() -> None:
    class Lost(SoftwareCapture):
        def __init__(self) -> None:
            pass

        def reset(self) -> None:
            raise RuntimeError("CUDA error: device-side assert triggered")

    release(Lost())
    release(None)


def test_a_graph_that_is_reset_keeps_no_output() -> None:
    graph = SoftwareBackend().capture(lambda: torch.ones(3) * 2)
    output = weakref.ref(graph.recording.result)
    graph.reset()
    graph.reset()
    gc.collect()
    assert output() is None


def test_code_without_a_file_is_checked_too() -> None:
    made: dict[str, Any] = {}
    exec("def f(x):\n    return x.to('cpu') * 2\n", made)
    with pytest.raises(ReplayDiffersError) as caught:
        compare(made["f"], [torch.ones(4)], backend="software")
    assert [one.check for one in caught.value.findings] == ["host-sync"]


def test_memory_that_nobody_filled_is_found_where_no_line_can_be_named() -> None:
    code = (
        "import torch\n"
        "from pytest_cudafork import assert_replay_equals_eager as compare\n"
        "def g(x):\n    y = torch.empty(4)\n    y[:2] = x[:2]\n    return y\n"
        "compare(g, [torch.ones(4)], backend='software')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=False, timeout=120
    )
    assert "[uninitialized-read]" in done.stderr
    assert "Eager code gives something else each time" not in done.stderr


def test_a_line_of_an_installed_file_is_not_read_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "lib" / "site-packages" / "oddlib"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    (installed / "ops.py").write_text("def f(x):\n    return x + x.sum().item()\n")
    checkout = tmp_path / "checkout"
    (checkout / "oddlib").mkdir(parents=True)
    (checkout / "oddlib" / "ops.py").write_text("\nUNRELATED = 'a line of the checkout'\n")
    monkeypatch.syspath_prepend(installed.parent)
    monkeypatch.chdir(checkout)
    import importlib

    ops = importlib.import_module("oddlib.ops")
    with pytest.raises(ReplayDiffersError) as caught:
        compare(ops.f, [torch.ones(4)], backend="software")
    for name in ("oddlib", "oddlib.ops"):
        monkeypatch.delitem(sys.modules, name)
    assert "    oddlib/ops.py:2\n        > return x + x.sum().item()" in str(caught.value)


@pytest.mark.parametrize(
    ("filename", "foreign"),
    [
        ("<string>", True),
        ("<frozen importlib._bootstrap>", True),
        ("<eval_with_key>.7", True),
        ("<doctest mylib.f[0]>", False),
        ("<stdin>", False),
        ("<python-input-3>", False),
        (__file__, False),
        (torch.__file__, True),
        (pytest.__file__, True),
        (gc.__doc__ and weakref.__file__, True),
        ("/opt/lib/python3.12/site-packages/numpy/linalg/linalg.py", True),
        ("/opt/lib/python3.12/site-packages/vllm/v1/worker.py", False),
        ("/usr/lib/python3/dist-packages/mylib/a.py", False),
    ],
)
def test_which_code_is_a_users(filename: str, foreign: bool) -> None:
    assert is_foreign(filename) is foreign


def test_places_are_shown_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown(f"{tmp_path}/a/b.py:3, /x/site-packages/lib/c.py:4") == "a/b.py:3, lib/c.py:4"
    assert shown("<stdin>:1") == "<stdin>:1"
    assert shown("") == ""

"""Sessions that were promised GPUs, or none, and tests that wanted fork and ran spawn."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from tests.sessions.check.test_other_plugins import needs_xdist
from tests.support.sessions import assert_no_crash, check, module, outcomes, run_session

SKIPS = """
import threading
import pytest

threading.Thread(target=threading.Event().wait, daemon=True).start()

@pytest.mark.gpus(1)
def test_needs_one():
    pass

@pytest.mark.gpus(3)
def test_needs_three():
    pass

def test_cuda():
    pytest.skip("CUDA is not available")

@pytest.mark.skip(reason="slow")
def test_slow():
    pass

@pytest.mark.cuda_isolated(method="forkserver")
def test_isolated():
    pass
"""
PROMISED = "--cuda-fork-expect-gpus=2"


def test_the_tests_that_did_not_run_as_meant_are_counted_and_fail(
    pytester: pytest.Pytester,
) -> None:
    whole = "import pytest; pytest.skip('no CUDA', allow_module_level=True)"
    pytester.makepyfile(test_it=SKIPS, test_whole=whole)
    env = {"CUDA_VISIBLE_DEVICES": ""}
    counted = run_session(pytester, PROMISED, "-v", env=env)
    assert counted.ret == 0
    counted.stdout.fnmatch_lines([
        "*= intent =*",
        "2 GPUs expected, and this session has 0: *",
        "1 test wanted fork and ran spawn",
        "  test_it.py::test_isolated: not forkserver: *",
        "3 tests need a GPU and were skipped, though GPUs were expected",
    ])  # fmt: skip

    errors = ("-v", "--cuda-fork-intent", "--junitxml=j.xml", "--continue-on-collection-errors")
    failed = run_session(pytester, PROMISED, *errors, env=env)
    assert_no_crash(failed)
    assert failed.ret == 1
    assert outcomes(failed) == {
        "test_needs_one": "ERROR",
        "test_needs_three": "SKIPPED",
        "test_cuda": "FAILED",
        "test_slow": "SKIPPED",
        "test_isolated": "FAILED",
    }
    failed.stdout.fnmatch_lines(["*ERROR collecting test_whole.py*", "*It was skipped at *"])
    root = ElementTree.parse(pytester.path / "j.xml").getroot()
    properties = {each.get("name"): each.get("value") for each in root.iter("property")}
    assert properties["cudafork_spawned"] == "1"
    assert properties["cudafork_gpu-skipped"] == "3"
    case = next(each for each in root.iter("testcase") if each.get("name") == "test_isolated")
    told = [each.get("value") for each in case.iter("property")]
    assert str(told[0]).startswith("wanted fork and ran spawn: not forkserver: ")

    update = ("--cuda-fork-baseline=known.toml", "--cuda-fork-baseline-update")
    first = run_session(pytester, PROMISED, "--cuda-fork-intent", *update, env=env)
    assert "baseline written: 4 tests now, 4 added, 0 removed" in first.stdout.str()
    known = run_session(pytester, PROMISED, "--cuda-fork-intent=spawned", update[0], "-v", env=env)
    assert known.ret == 0
    known.stdout.fnmatch_lines(["1 test wanted fork and ran spawn (1 in the baseline)"])


@needs_xdist
def test_a_test_of_a_session_without_gpus_that_sees_one_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it=module("""
def test_sees():
    touch()

def test_child_sees():
    code = 'import ctypes; ctypes.CDLL("libcuda.so.1").cuInit(0)'
    subprocess.run([sys.executable, "-c", code], check=True)

@pytest.mark.cuda_isolated(method="spawn")
def test_isolated_sees():
    touch()

def test_shown(phantom_cuda):
    touch()

def test_plain():
    pass
""")
    )
    options = ("--cuda-fork-expect-gpus=0", "--cuda-fork-intent=gpu-seen", "-p", "xdist", "-n1")
    env = {"PYTEST_CUDA_FORK_DEVICE": "phantom:sm_90"}
    result = check(pytester, "fork", *options, env=env)
    assert_no_crash(result)
    text = result.stdout.str()
    result.assert_outcomes(failed=3, passed=2)
    assert "3 tests saw a GPU, though none was expected" in text
    assert "FAILED test_it.py::test_shown" not in text
    blind = check(pytester, "fork", *options)  # the phantom shows no device
    blind.assert_outcomes(passed=5)


def test_a_test_that_sees_a_gpu_in_its_set_up_or_teardown_alone_fails(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        test_it=module("""
import pytest

@pytest.fixture
def before():
    touch()
    pytest.skip("not now")

@pytest.fixture
def after():
    yield
    touch()

@pytest.mark.cuda_isolated
def test_skipped(before):
    pass

def test_torn_down(after):
    pass

def test_plain():
    pass
""")
    )
    options = ("--cuda-fork-expect-gpus=0", "--cuda-fork-intent=gpu-seen")
    env = {"PYTEST_CUDA_FORK_DEVICE": "phantom:sm_90"}
    result = check(pytester, "fork", *options, env=env)
    assert_no_crash(result)
    result.assert_outcomes(errors=2, passed=2)
    result.stdout.fnmatch_lines([
        "2 tests saw a GPU, though none was expected",
        "  test_it.py::test_skipped: *",
        "  test_it.py::test_torn_down: *",
        "ERROR test_it.py::test_skipped - saw a GPU*",
        "ERROR test_it.py::test_torn_down - saw a GPU*",
    ])  # fmt: skip


def test_a_failure_names_its_place_where_a_line_is_all_that_is_shown(
    pytester: pytest.Pytester,
) -> None:
    path = pytester.makepyfile(
        test_it="import pytest\ndef test_a():\n    pytest.skip('no GPU')\n",
        test_whole="import pytest\npytest.skip('no GPU', allow_module_level=True)\n",
    ).with_name("test_it.py")
    options = ("--cuda-fork-expect-gpus=1", "--cuda-fork-intent=gpu-skipped")
    result = run_session(pytester, *options, "--tb=line", "--continue-on-collection-errors")
    result.assert_outcomes(failed=1, errors=1)
    words = "needs a GPU and was skipped, though GPUs were expected: no GPU"
    result.stdout.fnmatch_lines([f"{path}:3: {words}", f"FAILED test_it.py::test_a - {words}"])
    assert f"{path.with_name('test_whole.py')}:2" in result.stdout.str()


def test_a_subtest_that_is_skipped_for_want_of_a_gpu_counts_for_its_test(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        test_it="""
import unittest
import pytest

class Test(unittest.TestCase):
    def test_devices(self):
        for device in ("cpu", "cuda", "cuda:1"):
            with self.subTest(device=device):
                if device != "cpu":
                    self.skipTest("no GPU")

    def test_slow(self):
        with self.subTest(device="cuda"):
            self.skipTest("slow")

    @pytest.mark.gpus(1)
    @pytest.mark.cuda_isolated
    def test_marked(self):
        pass
"""
    )
    options = ("--cuda-fork-expect-gpus=1", "--cuda-fork-check")
    env = {"PYTEST_CUDA_FORK_DEVICE": "phantom:sm_90"}
    counted = run_session(pytester, *options, env=env)
    assert_no_crash(counted)
    assert counted.ret == 0
    failed = run_session(pytester, *options, "--cuda-fork-intent", env=env)
    assert_no_crash(failed)
    assert failed.ret == 1
    for result in (counted, failed):
        result.stdout.fnmatch_lines([
            "1 test needs a GPU and was skipped, though GPUs were expected",
            "  test_it.py::Test::test_devices: no GPU",
        ])  # fmt: skip


@needs_xdist
@pytest.mark.parametrize("errors", [True, False], ids=["errors", "counted"])
def test_a_file_that_is_skipped_as_a_whole_counts_once_with_several_workers(
    errors: bool, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        test_it="def test_a(): pass\ndef test_b(): pass\n",
        test_whole="import pytest\npytest.skip('no GPU', allow_module_level=True)\n",
    )
    options = ["--cuda-fork-expect-gpus=1", "-p", "xdist.plugin", "-n2", "--maxfail=2"]
    options += ["--cuda-fork-intent=gpu-skipped"] if errors else []
    result = run_session(pytester, *options)
    assert_no_crash(result)
    result.assert_outcomes(passed=2, errors=int(errors), skipped=int(not errors))
    result.stdout.fnmatch_lines([
        "1 test needs a GPU and was skipped, though GPUs were expected",
        "  test_whole.py: no GPU",
    ])  # fmt: skip
    if errors:
        result.stdout.fnmatch_lines(["needs a GPU and was skipped, though GPUs were expected: no*"])
        result.stdout.fnmatch_lines([f"It was skipped at {pytester.path}/test_whole.py:2."])


@pytest.mark.parametrize("workers", [(), pytest.param(("-n1",), marks=needs_xdist)])
def test_a_file_that_is_skipped_no_more_is_gone_from_the_baseline(
    workers: tuple[str, ...], pytester: pytest.Pytester
) -> None:
    whole = "import pytest\npytest.skip('no GPU', allow_module_level=True)\n"
    path = pytester.makepyfile(test_whole=whole)
    xdist = ("-p", "xdist.plugin") if workers else ()
    options = ("--cuda-fork-expect-gpus=1", "--cuda-fork-intent=gpu-skipped", *xdist, *workers)
    known = "--cuda-fork-baseline=known.toml"
    first = run_session(pytester, *options, known, "--cuda-fork-baseline-update")
    assert "baseline written: 1 test now, 1 added, 0 removed" in first.stdout.str()
    still = run_session(pytester, *options, known, "--cuda-fork-baseline-update=shrink")
    assert "baseline written: 1 test now, 0 added, 0 removed" in still.stdout.str()
    path.write_text("def test_a(): pass\n")
    gone = run_session(pytester, *options, known)
    gone.stdout.fnmatch_lines(["gone from the baseline: test_whole.py, which needs a GPU and*"])
    shrunk = run_session(pytester, *options, known, "--cuda-fork-baseline-update=shrink")
    assert "baseline written: 0 tests now, 0 added, 1 removed" in shrunk.stdout.str()


def test_a_test_that_did_not_run_stays_in_the_baseline(pytester: pytest.Pytester) -> None:
    text = """
        import pytest

        @pytest.fixture
        def resource():
            {resource}

        def test_a(resource): pass
    """
    options = ("--cuda-fork-expect-gpus=1", "--cuda-fork-intent=gpu-skipped")
    known = "--cuda-fork-baseline=known.toml"
    shrink = f"{known.partition('=')[0]}-update=shrink"
    pytester.makepyfile(test_it=text.format(resource="pytest.skip('no GPU')"))
    first = run_session(pytester, *options, known, "--cuda-fork-baseline-update")
    assert "baseline written: 1 test now, 1 added, 0 removed" in first.stdout.str()
    for resource in ("raise OSError('no network')", "pytest.skip('too slow today')"):
        pytester.makepyfile(test_it=text.format(resource=resource))
        other = run_session(pytester, *options, known, shrink)
        assert "baseline written: 1 test now, 0 added, 0 removed" in other.stdout.str()
    for not_run in ("--setup-only", "--collect-only"):
        nothing = run_session(pytester, *options, known, not_run)
        assert "gone from the baseline" not in nothing.stdout.str()
    pytester.makepyfile(test_it=text.format(resource="pass"))
    runs = run_session(pytester, *options, known, shrink)
    assert "baseline written: 0 tests now, 0 added, 1 removed" in runs.stdout.str()


def test_options_that_say_nothing_together_are_usage_errors(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): pass")
    for args, words in (
        (["--cuda-fork-expect-gpus=two"], "'two' is not a number of GPUs"),
        (["--cuda-fork-intent=gpu-skipped"], "--cuda-fork-intent: gpu-skipped: no GPU is promised"),
    ):
        result = run_session(pytester, *args)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert words in result.stderr.str()

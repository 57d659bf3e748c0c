"""The engine core's process: real processes, real pipes, real deaths; the core has no model."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import termios
import textwrap
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from sample_engine.batch.outputs import CoreOutput
from sample_engine.batch.request import FinishReason
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.config import EngineConfig, WorkerMethod
from sample_engine.errors import ConfigError, EngineDeadError, PromptError, RemoteError
from sample_engine.process import client as client_module
from sample_engine.process import core_handle
from sample_engine.process.client import START_SECONDS_ENV, InprocClient, ProcessClient
from sample_engine.process.interrupts import interrupts_deferred
from sample_engine.process.messages import MessageError
from sample_engine.process.rank_process import RankProcess
from sample_engine.process.start_method import StartDecision
from tests.engine.support.process import (
    EVENTS,
    HANG_SECONDS,
    METHODS,
    PROJECT,
    Milestone,
    Script,
    collect,
    descriptors,
    is_running,
    nothing_left_behind,
    start,
    take_for_ever,
    tokens_of,
    wait_until,
    wait_until_gone,
)
from tests.support.collector import collector_waits

EACH_METHOD = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.value)
FORK = WorkerMethod.FORK
ENDLESS = SamplingParams(max_tokens=10**9)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No test may leave a process or a descriptor behind."""
    with nothing_left_behind():
        yield


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The signals that cores are sent: none is needed for one that ends when it is asked to."""
    sent: list[int] = []
    original = RankProcess.send_signal

    def note(process: RankProcess, number: int) -> None:
        sent.append(number)
        original(process, number)

    monkeypatch.setattr(RankProcess, "send_signal", note)
    return sent


def wait_until_it_writes(client: ProcessClient) -> None:
    """Wait until the core has begun with a message, without reading any of it."""
    count = array.array("i", [0])

    def has_begun() -> bool:
        fcntl.ioctl(client._handle._core.connection.fileno(), termios.FIONREAD, count)
        return count[0] > 0

    wait_until(has_begun, "the core writes")


@EACH_METHOD
def test_a_core_answers_and_ends(method: WorkerMethod) -> None:
    client = start(method)
    try:
        assert client.info["model"] == "scripted"
        assert client.info["worker_method"] == method.value
        assert client.info["worker_reasons"] == ["a test asks for it"]
        pid = client.info["core_pid"]
        assert pid != os.getpid()
        assert is_running(pid)
        client.add_request("a", [1, 2, 3], SamplingParams(max_tokens=5))
        client.add_request("b", [7], SamplingParams(max_tokens=2))
        found = collect(client, 2)
        assert tokens_of(found["a"]) == [1, 2, 3, 1, 2]
        assert tokens_of(found["b"]) == [7, 7]
        assert found["a"][-1].finish_reason is FinishReason.LENGTH
        assert client.metrics()["by_position"] == {0: 1, 1: 2}
    finally:
        client.shutdown()
    assert not is_running(pid)
    client.shutdown()  # once more does no harm
    with pytest.raises(EngineDeadError, match="was shut down: make a new engine"):
        client.add_request("c", [1], SamplingParams())


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.value)
def test_starting_and_ending_many_times_leaves_no_descriptor(method: WorkerMethod) -> None:
    start(method).shutdown()  # multiprocessing opens its own things once
    before = descriptors()
    for _ in range(2 if method is WorkerMethod.SPAWN else 4):
        start(method).shutdown()
    assert len(descriptors()) <= len(before)


@EACH_METHOD
def test_a_core_that_is_killed_in_mid_generation_is_noticed(method: WorkerMethod) -> None:
    client = start(method, Script(step_seconds=0.05))
    try:
        client.add_request("a", [1, 2, 3], ENDLESS)
        assert tokens_of(client.get_outputs(HANG_SECONDS))[:1] == [1]
        os.kill(client.info["core_pid"], signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="was killed by SIGKILL, as the system does when"):
            take_for_ever(client)
        with pytest.raises(EngineDeadError, match="was killed by SIGKILL"):
            client.add_request("b", [1], SamplingParams())
    finally:
        client.shutdown()


def test_a_dead_core_is_noticed_although_its_own_child_holds_the_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()

    def die_beside_a_child() -> None:
        os.close(writing)
        if os.fork() == 0:
            os.read(reading, 1)  # until the test closes the other end
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setitem(EVENTS, "kill beside a child", die_beside_a_child)
    client = start(FORK, Script(at_step="kill beside a child"))
    try:
        client.add_request("a", [1], ENDLESS)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            take_for_ever(client)
    finally:
        client.shutdown()
        os.close(writing)
        os.close(reading)


def test_what_came_before_the_death_is_handed_out_and_its_last_words_are_told() -> None:
    client = start(FORK, Script(at_step="kill", step_number=3))
    try:
        client.add_request("a", [5, 6], SamplingParams(max_tokens=2))
        client.add_request("b", [1], ENDLESS)
        found: list[CoreOutput] = []
        with pytest.raises(EngineDeadError, match="It last wrote on its stderr:\nnow it comes"):
            take_for_ever(client, found)
        assert tokens_of([output for output in found if output.request_id == "a"]) == [5, 6]
    finally:
        client.shutdown()


def test_a_crash_tells_the_python_line() -> None:
    client = start(FORK, Script(at_step="crash"))
    try:
        client.add_request("a", [1], ENDLESS)
        with pytest.raises(EngineDeadError) as caught:
            take_for_ever(client)
        assert "was killed by SIGSEGV." in str(caught.value)
        assert "Segmentation fault" in str(caught.value)
        assert "in _crash" in str(caught.value)
    finally:
        client.shutdown()


@EACH_METHOD
def test_an_error_in_a_step_comes_with_its_traceback(method: WorkerMethod) -> None:
    client = start(method, Script(at_step="error", step_number=2))
    try:
        client.add_request("a", [1, 2], ENDLESS)
        found: list[CoreOutput] = []
        with pytest.raises(RemoteError) as caught:
            take_for_ever(client, found)
        assert tokens_of(found) == [1]
        text = str(caught.value)
        assert "failed while running: ZeroDivisionError: nothing is left to divide by" in text
        assert 'support/process.py", line' in text
        assert "in _error" in text
        with pytest.raises(EngineDeadError, match="ended after an error: ZeroDivisionError"):
            client.get_outputs(None)
    finally:
        client.shutdown()


def test_an_error_in_a_step_comes_whole_to_who_asks_for_more_first() -> None:
    client = start(FORK, Script(at_step="error", step_number=2))
    try:
        client.add_request("a", [1, 2], ENDLESS)
        assert client._handle._core.wait_for_end(HANG_SECONDS)
        client.add_request("b", [1], ENDLESS)
        client.abort(["b"])
        found: list[CoreOutput] = []
        with pytest.raises(RemoteError, match="ZeroDivisionError: nothing is left to divide by"):
            take_for_ever(client, found)
        assert tokens_of(found) == [1]
    finally:
        client.shutdown()


@EACH_METHOD
def test_an_error_at_the_start_is_raised_as_what_it_is(method: WorkerMethod) -> None:
    with pytest.raises(ConfigError, match="num_blocks=1 must be") as caught:
        start(method, Script(at_start="config error"))
    assert caught.value.__cause__ is None  # where in the core it was found is noise
    assert caught.value.__context__ is None


def test_another_error_at_the_start_carries_the_remote_traceback() -> None:
    with pytest.raises(RemoteError, match="failed while starting: ZeroDivisionError") as caught:
        start(FORK, Script(at_start="error"))
    assert "in _error" in str(caught.value)


@EACH_METHOD
def test_a_core_that_ends_while_it_starts_is_told_with_its_exit_code(method: WorkerMethod) -> None:
    words = "ended by itself with exit code 3.\nIt last wrote on its stderr:\nthe cache file is"
    with pytest.raises(EngineDeadError, match=words):
        start(method, Script(at_start="exit"))


def test_a_start_that_takes_too_long_says_what_was_waited_for(
    asleep: Milestone, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def now() -> float:
        """Let the core come to its sleep first, and then what it said before be read once."""
        nonlocal looks
        looks += 1
        if looks == 1:  # for the deadline
            asleep.wait()
        return 0.0 if looks <= 2 else 1.0

    monkeypatch.setattr(client_module, "time", types.SimpleNamespace(monotonic=now))
    with pytest.raises(EngineDeadError) as caught:
        start(FORK, Script(at_start="sleep"), start_seconds=0.5)
    text = str(caught.value)
    assert "was not ready after 0.5 seconds and was ended" in text
    assert "It was waited for: building the engine core: imports, weights, KV cache." in text
    assert START_SECONDS_ENV in text
    assert "in sleep_for_ever" in text  # the stacks
    assert text.rstrip().endswith("in run_core"), "they are whole"


def test_the_limit_of_the_start_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    decision = StartDecision(FORK, (), FORK)
    monkeypatch.setenv(START_SECONDS_ENV, "0.25")
    with pytest.raises(EngineDeadError, match=r"after 0\.25 seconds"):
        ProcessClient(EngineConfig(), Script(at_start="sleep"), decision)
    for wrong in ("soon", "0", "-1", "nan"):
        monkeypatch.setenv(START_SECONDS_ENV, wrong)
        with pytest.raises(ConfigError, match=f"{START_SECONDS_ENV}='{wrong}' is not a number"):
            ProcessClient(EngineConfig(), Script(), decision)


PARENT = """
import os, sys, time
from sample_engine.config import WorkerMethod
from sample_engine.batch.sampling_params import SamplingParams
from tests.engine.support.process import Script, start

client = start(WorkerMethod(sys.argv[1]), Script(at_step=sys.argv[2], step_seconds=0.05))
client.add_request("a", [1], SamplingParams(max_tokens=10**9))
if sys.argv[3] == "sibling":
    if os.fork() == 0:  # it inherits the parent's end of the pipe, and outlives the parent
        os.read(0, 1)  # until the test closes the other end
        os._exit(0)
print(client.info["core_pid"], flush=True)
time.sleep(3600)
"""


@pytest.mark.parametrize(
    ("method", "at_step", "sibling"),
    [
        ("fork", "", ""),
        ("spawn", "", ""),
        ("forkserver", "", ""),
        ("fork", "sleep", ""),
        ("fork", "", "sibling"),
    ],
    ids=lambda value: value or "-",
)
def test_a_core_ends_when_its_parent_is_killed(method: str, at_step: str, sibling: str) -> None:
    command = [sys.executable, "-c", PARENT, method, at_step, sibling]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=PROJECT) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()
        wait_until_gone(pid)  # and only then the sibling ends


@EACH_METHOD
def test_ctrl_c_goes_past_the_core(method: WorkerMethod) -> None:
    client = start(method)
    try:
        os.kill(client.info["core_pid"], signal.SIGINT)
        client.add_request("a", [1], SamplingParams(max_tokens=3))
        assert tokens_of(collect(client)["a"]) == [1, 1, 1]
    finally:
        client.shutdown()


@pytest.mark.parametrize("end", ["sleeping in a step", "stopped"])
def test_a_core_that_does_not_hear_is_ended_after_a_while(
    end: str, asleep: Milestone, signals: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_STOP_SECONDS", 0.3)
    if end != "stopped":  # it ends by itself then, however long that takes
        monkeypatch.setattr(core_handle, "_TERMINATE_SECONDS", HANG_SECONDS)
    client = start(FORK, Script(at_step="sleep", step_number=1))
    pid = client.info["core_pid"]
    if end == "stopped":
        os.kill(pid, signal.SIGSTOP)  # holds SIGTERM back; SIGKILL it cannot
    else:
        client.add_request("a", [1], ENDLESS)
        asleep.wait()
    client.shutdown()
    assert not is_running(pid)
    also_killed = [signal.SIGKILL] if end == "stopped" else []
    assert signals == [signal.SIGTERM, *also_killed]


def test_a_core_that_waits_for_a_reader_can_be_shut_down(
    signals: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_STOP_SECONDS", HANG_SECONDS)
    client = start(FORK, Script(tokens_per_step=1_000_000))  # more than a pipe holds
    client.add_request("a", list(range(200)), ENDLESS)
    wait_until_it_writes(client)
    client.shutdown()
    assert signals == []


def test_both_ends_can_write_more_than_the_pipe_holds() -> None:
    client = start(FORK, Script(tokens_per_step=500_000))
    try:
        prompt = [token % 250 for token in range(400_000)]
        client.add_request("a", prompt, SamplingParams(max_tokens=500_000))
        wait_until_it_writes(client)  # and nobody reads
        for number in range(3):
            client.add_request(f"b{number}", prompt, SamplingParams(max_tokens=5))
        found = collect(client, 4)
        assert tokens_of(found["a"]) == prompt + prompt[:100_000]
    finally:
        client.shutdown()


def test_bytes_that_are_no_message_are_an_error_and_end_the_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Of this process; a forked core has them as well. Not their numbers: what an earlier test has
    # left may be closed at any time, and its number is the next one's.
    others = set(descriptors().values())

    def write_garbage() -> None:
        for fd in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                target = os.readlink(f"/proc/self/fd/{fd}")
                if target.startswith("socket:") and target not in others:
                    os.write(fd, b"\x00\x00\x00\x05hello")

    monkeypatch.setitem(EVENTS, "garbage", write_garbage)
    client = start(FORK, Script(at_step="garbage", step_number=2))
    pid = client.info["core_pid"]
    client.add_request("a", [1], ENDLESS)
    with pytest.raises(MessageError, match=r"no message of this engine: 5 bytes, b'hello'"):
        take_for_ever(client)
    assert not is_running(pid)
    with pytest.raises(EngineDeadError, match="was ended: What came from the engine core"):
        client.get_outputs(None)


def test_an_abort_is_heard_and_a_refusal_is_an_output() -> None:
    client = start(FORK, Script(step_seconds=0.01))
    try:
        client.add_request("a", [1], ENDLESS)
        client.add_request("empty", [], SamplingParams())
        found = collect(client, 1)
        assert found["empty"][0].finish_reason is FinishReason.ERROR
        assert found["empty"][0].error == "Request 'empty' has an empty prompt."
        client.abort(["a"])
        assert client.metrics()["aborted"] == ["a"]
        client.get_outputs(0)
        steps = client.metrics()["steps"]
        time.sleep(0.1)
        assert client.metrics()["steps"] == steps
        assert client.get_outputs(0) == []
    finally:
        client.shutdown()


@pytest.mark.parametrize("method", [FORK, WorkerMethod.INPROC], ids=lambda m: m.value)
@pytest.mark.parametrize("wrong", [[1.5], [1 << 70], ["a"]], ids=["fraction", "large", "text"])
def test_a_request_that_cannot_be_sent_is_refused_and_the_engine_goes_on(
    method: WorkerMethod, wrong: list[int]
) -> None:
    decision = StartDecision(method, (), method)
    make = InprocClient if method is WorkerMethod.INPROC else ProcessClient
    client = make(EngineConfig(), Script(), decision)
    try:
        with pytest.raises(PromptError, match="cannot be sent to the engine core") as caught:
            client.add_request("a", wrong, SamplingParams())
        assert "ake a new engine" not in str(caught.value)
        client.add_request("b", [1], SamplingParams(max_tokens=2))
        assert tokens_of(collect(client)["b"]) == [1, 1]
    finally:
        client.shutdown()


def test_a_child_of_the_front_end_can_neither_use_nor_end_the_core() -> None:
    client = start(FORK)
    try:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                client.add_request("a", [1], SamplingParams())
            except EngineDeadError as error:
                code = 0 if "from which this one was forked" in str(error) else 2
            finally:
                client.shutdown()
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        client.add_request("a", [1], SamplingParams(max_tokens=1))
        assert tokens_of(collect(client)["a"]) == [1]
    finally:
        client.shutdown()


def test_a_core_can_be_started_from_a_thread_and_outlives_it() -> None:
    made: list[ProcessClient] = []
    thread = threading.Thread(target=lambda: made.append(start(FORK)))
    thread.start()
    thread.join()
    (client,) = made
    try:
        client.add_request("a", [1], SamplingParams(max_tokens=1))
        assert tokens_of(collect(client)["a"]) == [1]
    finally:
        client.shutdown()


@pytest.mark.parametrize("ranks", [1, 2])
def test_ctrl_c_while_it_waits_loses_nothing(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The core interrupts the front end in each step, once the one before was noticed.

    The first one comes after the request was sent and before an output: while it is expected.
    """
    front_end, (reading, writing) = os.getpid(), os.pipe()
    os.write(writing, b"!")
    expects_one = False

    def interrupt() -> None:
        if select.select([reading], [], [], 0)[0]:
            os.read(reading, 1)
            os.kill(front_end, signal.SIGINT)

    def handle(*_: object) -> None:
        nonlocal expects_one
        if expects_one:
            expects_one = False
            raise KeyboardInterrupt
        os.write(writing, b"!")  # between two calls: another one is welcome

    monkeypatch.setitem(EVENTS, "interrupt", interrupt)
    before = signal.signal(signal.SIGINT, handle)
    script = Script(at_step="interrupt", step_number=0, step_seconds=0.002)
    client = start(FORK, script, ranks=ranks)
    found: list[CoreOutput] = []
    interrupts = 0
    to_send = [SamplingParams(max_tokens=40)]
    try:
        with collector_waits():
            while not found or found[-1].finish_reason is None:
                try:
                    expects_one = True
                    while to_send:
                        client.add_request("a", [1, 2, 3, 4], to_send.pop())
                    client.wait_for_outputs(HANG_SECONDS)
                    with interrupts_deferred():
                        found += client.get_outputs(0.0)
                    expects_one = False
                except KeyboardInterrupt:
                    interrupts += 1
                    os.write(writing, b"!")
    finally:
        signal.signal(signal.SIGINT, before)
        client.shutdown()
        os.close(reading)
        os.close(writing)
    assert interrupts
    assert tokens_of(found) == [1, 2, 3, 4] * 10


UNGUARDED = """
from sample_engine.config import WorkerMethod
from sample_engine.batch.sampling_params import SamplingParams
from tests.engine.support.process import collect, start, tokens_of

print("the script begins", flush=True)
client = start(WorkerMethod("{method}"))
client.add_request("a", [1, 2], SamplingParams(max_tokens=3))
print(tokens_of(collect(client)["a"]))
client.shutdown()
"""


@EACH_METHOD
@pytest.mark.parametrize("source", ["file", "stdin"])
def test_a_script_needs_no_guard_around_its_main_part(
    method: WorkerMethod, source: str, tmp_path: Path
) -> None:
    text = textwrap.dedent(UNGUARDED.format(method=method.value))
    script = tmp_path / "script.py"
    script.write_text(text)
    done = subprocess.run(
        [sys.executable, *([str(script)] if source == "file" else [])],
        input="" if source == "file" else text,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=PROJECT,
    )
    assert done.stdout == "the script begins\n[1, 2, 1]\n"
    assert done.stderr == ""


def test_a_program_that_ends_without_a_word_takes_its_core_with_it() -> None:
    code = """
    from sample_engine.config import WorkerMethod
    from sample_engine.batch.sampling_params import SamplingParams
    from tests.engine.support.process import start
    client = start(WorkerMethod.FORK)
    client.add_request("a", [1], SamplingParams(max_tokens=10**9))
    print(client.info["core_pid"])
    """
    # Not from a server of interpreters, whose socket would be a descriptor that is left.
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        cwd=PROJECT,
    )
    assert done.stderr == ""
    wait_until_gone(int(done.stdout))

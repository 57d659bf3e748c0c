"""The front end: prompts in, text out; with a scripted core where the model does not matter."""

from __future__ import annotations

import gc
import io
import itertools
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_cudafork.observe.driver import native_libs
from sample_engine import LLM, EngineConfig, SamplingParams
from sample_engine.batch.outputs import CompletionOutput, CoreOutput, RequestOutput
from sample_engine.batch.request import FinishReason
from sample_engine.errors import ConfigError, EngineDeadError, PromptError, RemoteError
from sample_engine.frontend.detokenizer import RequestText
from sample_engine.process import messages
from tests.engine.support.process import (
    EVENTS,
    HANG_SECONDS,
    MOST_PROMPT,
    Script,
    children,
    is_running,
    wait_until_gone,
)
from tests.engine.support.programs import run_python
from tests.support.collector import collector_waits

ENDLESS = SamplingParams(max_tokens=10**9)


@pytest.fixture
def llm() -> Iterator[LLM]:
    """An engine in this process whose core repeats the prompt, two tokens at a time."""
    with LLM(worker_method="inproc", core_factory=Script(tokens_per_step=2)) as made:
        yield made


@pytest.fixture
def forked() -> Iterator[LLM]:
    """One with a process, which takes its time."""
    script = Script(step_seconds=0.005)
    with LLM(worker_method="fork", device="cpu", core_factory=script) as made:
        yield made


def test_outputs_come_in_the_order_of_prompts_with_their_own_parameters(llm: LLM) -> None:
    prompts = ["abc", "xy", "é", "q"]
    params = [SamplingParams(max_tokens=n) for n in (9, 2, 4, 1)]
    outputs = llm.generate(prompts, params)
    assert [output.prompt for output in outputs] == prompts
    assert [output.text for output in outputs] == ["abcabcabc", "xy", "éé", "q"]
    assert [output.finish_reason for output in outputs] == [FinishReason.LENGTH] * 4
    assert [output.num_prompt_tokens for output in outputs] == [3, 2, 2, 1]
    assert len({output.request_id for output in outputs}) == 4


def test_one_prompt_may_be_given_by_itself_and_parameters_left_out(llm: LLM) -> None:
    (output,) = llm.generate("abc")
    assert output.text == ("abc" * 30)[: SamplingParams().max_tokens]
    completion = CompletionOutput(
        0, output.text, tuple(output.text.encode()), finish_reason=FinishReason.LENGTH
    )
    assert output == RequestOutput(
        request_id=output.request_id,
        prompt="abc",
        prompt_token_ids=tuple(b"abc"),
        outputs=(completion,),
    )


def test_a_prompt_may_be_a_mapping_with_its_text_or_its_tokens(llm: LLM) -> None:
    (output,) = llm.generate({"prompt": "abc"})
    assert output.prompt_token_ids == tuple(b"abc")
    text, tokens = llm.generate(["xy", {"prompt_token_ids": [120, 121]}])
    assert (text.prompt, tokens.prompt) == ("xy", None)
    assert text.text == tokens.text
    assert text.prompt_token_ids == tokens.prompt_token_ids


def test_several_completions_of_a_prompt_come_in_one_output(llm: LLM) -> None:
    three = SamplingParams(n=3, temperature=1.0, max_tokens=5, stop=("cab",))
    first, second = llm.generate(["abc", "xy"], [three, SamplingParams(max_tokens=2)])
    assert [(one.index, one.text) for one in first.outputs] == [(0, "ab"), (1, "ab"), (2, "ab")]
    assert (second.text, len(second.outputs)) == ("xy", 1)
    assert first.request_id != second.request_id
    assert first.finished
    chunks = list(llm.generate_stream("abc", three))
    assert {chunk.request_id for chunk in chunks} == {chunks[0].request_id}
    for index in range(3):
        of_one = [chunk.outputs[0] for chunk in chunks if chunk.outputs[0].index == index]
        assert "".join(one.text for one in of_one) == "ab"


def test_a_prompt_without_room_is_refused_before_it_travels() -> None:
    with LLM(worker_method="inproc", core_factory=Script(max_model_len=8)) as short:
        with pytest.raises(PromptError, match="prompt of at least 100000000 tokens, but with max"):
            short.generate("x" * 100_000_000)
        with pytest.raises(PromptError, match="has a prompt of 9 tokens"):
            short.generate({"prompt_token_ids": [1] * 9})
        assert short.generate("abc", SamplingParams(max_tokens=1))[0].text == "a"


def test_a_prompt_beyond_the_limit_of_a_message_does_not_end_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages, "MOST_BYTES", 10_000)
    with LLM(worker_method="fork", device="cpu", core_factory=Script()) as engine:
        with pytest.raises(PromptError, match=r"bytes, and a message may have 10,000\."):
            engine.generate("x" * 20_000)
        fits, long = engine.generate(["abc", "x" * 20_000], SamplingParams(max_tokens=4))
        assert fits.text == "abca"
        assert "a message may have 10,000" in str(long.error)


def test_a_step_costs_the_same_however_many_completions_have_ended(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def finished(text: RequestText) -> bool:
        asked.append(text)
        return text.finish_reason is not None

    monkeypatch.setattr(RequestText, "finished", property(finished))
    params = [SamplingParams(max_tokens=1)] * 200 + [SamplingParams(max_tokens=300)]
    outputs = llm.generate(["ab"] * 201, params)
    assert [len(output.token_ids) for output in outputs] == [1] * 200 + [300]
    assert len(asked) < 3000  # 150 steps, and 201 that end; each of all at each step: 30,000


def test_no_prompts_are_no_outputs(llm: LLM) -> None:
    assert llm.generate([]) == []
    assert list(llm.generate_stream([])) == []


def test_a_stop_string_ends_the_text_before_it_and_the_work_on_it(llm: LLM) -> None:
    stop = SamplingParams(max_tokens=10**9, stop=("dab", "nothing"))
    outputs = llm.generate(["abcd", "xdab", "zz"], [stop, stop, SamplingParams(max_tokens=6)])
    assert [output.text for output in outputs] == ["abc", "x", "zzzzzz"]
    assert outputs[0].finish_reason is FinishReason.STOP
    # The token that completes the stop string is the last.
    assert bytes(outputs[0].token_ids) == b"abcdab"
    assert sorted(llm.metrics()["aborted"]) == [output.request_id for output in outputs[:2]]


def test_the_parts_of_a_stream_are_the_output_of_generate(llm: LLM) -> None:
    prompts = ["abcdé", "xy", ""]
    params = SamplingParams(max_tokens=13, stop=("yx y", "cdéab"))
    whole = llm.generate(prompts, params)
    parts: dict[str | None, list[RequestOutput]] = {}
    for chunk in llm.generate_stream(prompts, params):
        parts.setdefault(chunk.prompt, []).append(chunk)
    for output in whole:
        chunks = parts[output.prompt]
        assert "".join(chunk.text for chunk in chunks) == output.text
        assert sum((chunk.token_ids for chunk in chunks), ()) == output.token_ids
        assert chunks[-1].finish_reason is output.finish_reason
        assert chunks[-1].error == (output.error and output.error.replace("'2'", "'5'"))
        assert all(not chunk.finished for chunk in chunks[:-1])


def test_a_stream_brings_text_as_it_comes(forked: LLM) -> None:
    stream = forked.generate_stream("abc", ENDLESS)
    assert [chunk.text for chunk in itertools.islice(stream, 5)] == ["a", "b", "c", "a", "b"]


@pytest.mark.parametrize("end", ["close", "forget"])
def test_ending_a_stream_aborts_its_requests(forked: LLM, end: str) -> None:
    stream = forked.generate_stream(["abc", "x"], ENDLESS)
    first = next(stream)
    if end == "close":
        stream.close()  # type: ignore[attr-defined]
    else:
        del stream
        gc.collect()
    assert first.text == "a"
    assert sorted(forked.metrics()["aborted"]) == ["0", "1"]
    assert forked.generate("q", SamplingParams(max_tokens=2))[0].text == "qq"


def test_a_stream_computes_nothing_before_it_is_read_but_checks_at_once(llm: LLM) -> None:
    llm.generate_stream("abc", ENDLESS)
    assert llm.metrics()["steps"] == 0
    with pytest.raises(TypeError):
        llm.generate_stream([1])  # type: ignore[list-item]


def test_streams_and_batches_can_be_read_in_turns(forked: LLM) -> None:
    first = forked.generate_stream("abc", SamplingParams(max_tokens=9))
    second = forked.generate_stream("xyz", SamplingParams(max_tokens=9))
    texts = ["", ""]
    for one, other in zip(first, second, strict=True):
        texts[0] += one.text
        texts[1] += other.text
        if len(texts[0]) == 4:
            assert forked.generate("q", SamplingParams(max_tokens=3))[0].text == "qqq"
    assert texts == ["abcabcabc", "xyzxyzxyz"]


def test_two_threads_may_use_one_engine(forked: LLM) -> None:
    texts: dict[str, str] = {}

    def complete(prompt: str) -> None:
        (output,) = forked.generate(prompt, SamplingParams(max_tokens=12))
        texts[prompt] = output.text

    threads = [threading.Thread(target=complete, args=(prompt,)) for prompt in ("ab", "xyz", "q")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert texts == {"ab": "ab" * 6, "xyz": "xyz" * 4, "q": "q" * 12}


def test_what_one_call_has_read_for_another_is_not_waited_for_again(
    forked: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, late = forked._client, list[str]()
    wait, get_outputs, brought = client.wait_for_outputs, client.get_outputs, threading.Event()

    def all_at_once(timeout: float | None = None) -> list[CoreOutput]:
        found: list[CoreOutput] = []
        if len(forked._live) == 2:
            while sum(output.finish_reason is not None for output in found) < 2:
                wait(HANG_SECONDS)
                found += get_outputs(0.0)
            brought.set()
        return found

    def wait_for_outputs(timeout: float | None = None) -> None:
        late.extend(["nothing more comes"] * brought.is_set())

    monkeypatch.setattr(client, "wait_for_outputs", wait_for_outputs)
    monkeypatch.setattr(client, "get_outputs", all_at_once)
    texts: dict[str, str] = {}

    def complete(prompt: str) -> None:
        chunks = forked.generate_stream(prompt, SamplingParams(max_tokens=4))
        texts[prompt] = "".join(chunk.text for chunk in chunks)

    threads = [threading.Thread(target=complete, args=(prompt,)) for prompt in ("ab", "xyz")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert texts == {"ab": "abab", "xyz": "xyzx"}
    assert late == []


def test_a_text_that_is_encoded_for_long_does_not_hold_others_up(
    forked: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, others_are_done = threading.Event(), threading.Event()
    encode = forked._tokenizer.encode

    def slow(text: str, *, special: bool = True) -> list[int]:
        if text == "long":
            begun.set()
            assert others_are_done.wait(HANG_SECONDS)
        return encode(text, special=special)

    monkeypatch.setattr(forked._tokenizer, "encode", slow)
    params, outputs = SamplingParams(max_tokens=4), []
    thread = threading.Thread(target=lambda: outputs.extend(forked.generate("long", params)))
    thread.start()
    assert begun.wait(HANG_SECONDS)
    other = threading.Thread(target=lambda: outputs.extend(forked.generate("q", params)))
    other.start()
    other.join(HANG_SECONDS / 2)  # the first one does not wait so long
    in_time = not other.is_alive()
    others_are_done.set()
    for each in (thread, other):
        each.join(HANG_SECONDS)
    assert in_time
    assert [output.text for output in outputs] == ["qqqq", "long"]


def test_a_wrong_prompt_by_itself_is_an_error(llm: LLM) -> None:
    with pytest.raises(PromptError, match="Request '0' has an empty prompt"):
        llm.generate("")
    with pytest.raises(PromptError, match="half of a surrogate pair"):
        llm.generate("a\ud800")
    with pytest.raises(PromptError, match="has an empty prompt"):
        list(llm.generate_stream(""))


@pytest.mark.parametrize("method", ["inproc", "fork"])
def test_a_wrong_prompt_among_others_does_not_keep_them_from_finishing(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    prompts = ["ab", "", "\ud800", "x" * (MOST_PROMPT + 1), "cd"]
    with LLM(worker_method=method, device="cpu", core_factory=Script()) as llm:
        good, empty, broken, long, last = llm.generate(prompts, SamplingParams(max_tokens=4))
    assert (good.text, last.text) == ("abab", "cdcd")
    for output, words in ((empty, "empty"), (broken, "surrogate"), (long, "too long")):
        assert output.finish_reason is FinishReason.ERROR
        assert output.text == ""
        assert output.token_ids == ()
        assert output.error is not None
        assert words in output.error
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("3 of 5 prompts ended with an error")


def test_wrong_arguments_are_refused_before_anything_is_computed(llm: LLM) -> None:
    wrong: list[tuple[Any, Any, type[Exception], str]] = [
        (["a", 7], None, TypeError, "Prompt 1 is 7: prompts are str"),
        ([["a"]], None, TypeError, r"Prompt 0 is \['a'\]"),
        (b"abc", None, TypeError, r"prompts=b'abc' is of the type bytes: give a str, or a list"),
        (None, None, TypeError, "prompts=None is of the type NoneType: give a str"),
        (5, None, TypeError, "prompts=5 is of the type int: give a str"),
        ({"a": 1}, None, TypeError, "Prompt 0 has 'a', which this engine does not know"),
        ([{"prompt": 3}], None, TypeError, "Prompt 0: prompt=3 is no text"),
        ({"prompt_token_ids": "ab"}, None, TypeError, "prompt_token_ids='ab' is no list of tok"),
        ("a", {"max_tokens": 3}, TypeError, r"the type dict: it is a .*\(\*\*values\) makes one"),
        ("a", 3, TypeError, "sampling_params=3 is of the type int: it is a SamplingParams, or"),
        ("a", "x", TypeError, "sampling_params='x' is of the type str: it is a SamplingParams"),
        ("a", ["x"], TypeError, "sampling_params holds 'x': it is a SamplingParams, or a list"),
        (["a", "b"], [SamplingParams()], PromptError, "are 2 prompts and 1 sampling_params"),
    ]
    for prompts, params, kind, words in wrong:
        with pytest.raises(kind, match=words):
            llm.generate(prompts, params)
    assert llm.metrics()["steps"] == 0


def test_settings_are_those_of_the_configuration() -> None:
    with pytest.raises(TypeError, match="Did you mean 'block_size'"):
        LLM(blocksize=3)
    with pytest.raises(ConfigError, match="block_size=3"):
        LLM(block_size=3)
    with LLM(worker_method="inproc", core_factory=Script(), seed=7) as llm:
        assert llm.config == EngineConfig.of(worker_method="inproc", seed=7)


def test_what_had_finished_is_in_the_error_of_a_core_that_is_killed() -> None:
    script = Script(at_step="kill", step_number=4, step_seconds=0.01)
    with LLM(worker_method="fork", device="cpu", core_factory=script) as llm:
        with pytest.raises(EngineDeadError, match="was killed by SIGKILL") as caught:
            llm.generate(["ab", "xy"], [SamplingParams(max_tokens=2), ENDLESS])
        assert [output.text for output in caught.value.outputs] == ["ab"]
        with pytest.raises(EngineDeadError, match="was killed by SIGKILL"):
            llm.generate("ab")


def test_what_had_finished_is_in_the_error_of_a_core_that_fails() -> None:
    script = Script(at_step="error", step_number=4)
    with LLM(worker_method="fork", device="cpu", core_factory=script) as llm:
        stream = llm.generate_stream(["ab", "xy"], [SamplingParams(max_tokens=2), ENDLESS])
        with pytest.raises(RemoteError, match="ZeroDivisionError") as caught:
            list(stream)
        assert [output.text for output in caught.value.outputs] == ["ab"]


def test_without_a_process_an_error_of_the_core_is_raised_as_it_is() -> None:
    script = Script(at_step="error", step_number=1)
    with LLM(worker_method="inproc", core_factory=script) as llm:
        with pytest.raises(ZeroDivisionError):
            llm.generate("ab")
        with pytest.raises(EngineDeadError, match="make a new engine"):
            llm.generate("ab")


@pytest.mark.parametrize("method", ["inproc", "fork"])
def test_ctrl_c_ends_a_batch_and_not_the_engine(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    front_end = os.getpid()
    monkeypatch.setitem(EVENTS, "interrupt", lambda: os.kill(front_end, signal.SIGINT))
    # The core sends the signal, when it has completed the first prompt and works on the second.
    script = Script(at_step="interrupt", step_number=5)
    with LLM(worker_method=method, device="cpu", core_factory=script) as llm:
        with collector_waits(), pytest.raises(KeyboardInterrupt):
            llm.generate(["abc", "x"], [SamplingParams(max_tokens=4), ENDLESS])
        # The first one had finished; whether that was read before the signal came is open.
        assert llm.metrics()["aborted"] in (["1"], ["0", "1"])
        assert llm.generate("abc", SamplingParams(max_tokens=4))[0].text == "abca"


@pytest.mark.parametrize("method", ["inproc", "fork"])
def test_ctrl_c_takes_nothing_from_a_call_that_is_not_interrupted(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads what the core says hands it out to all; Ctrl-C meets one of them."""
    script = Script(step_seconds=0.01)
    with LLM(worker_method=method, device="cpu", core_factory=script) as llm:
        stream = llm.generate_stream("abc", SamplingParams(max_tokens=12))
        first = next(stream)
        original = llm._client.get_outputs

        def interrupted(timeout: float | None = None) -> list[CoreOutput]:
            found = original(timeout)
            if any(output.request_id == first.request_id for output in found):
                monkeypatch.undo()
                signal.raise_signal(signal.SIGINT)
            return found

        monkeypatch.setattr(llm._client, "get_outputs", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate("q", ENDLESS)
        assert first.text + "".join(chunk.text for chunk in stream) == "abc" * 4


def test_an_abort_is_told_although_another_call_is_just_about_to_end(
    forked: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = forked.generate_stream("abc", ENDLESS)
    first = next(stream)
    original = forked._tell_aborts

    def tell_and_let_another_come() -> None:
        original()
        monkeypatch.undo()
        stream.close()  # type: ignore[attr-defined]

    monkeypatch.setattr(forked, "_tell_aborts", tell_and_let_another_come)
    forked.generate("q", SamplingParams(max_tokens=1))
    assert forked._client.metrics()["aborted"] == [first.request_id]


@pytest.mark.parametrize("method", ["inproc", "fork"])
def test_a_batch_that_is_interrupted_while_it_is_sent_is_aborted(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LLM(worker_method=method, device="cpu", core_factory=Script()) as llm:
        original = llm._client.add_request

        def interrupted(request_id: str, *rest: Any) -> None:
            original(request_id, *rest)
            if request_id == "1":
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(llm._client, "add_request", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["abc", "x", "y"], ENDLESS)
        assert sorted(llm.metrics()["aborted"]) == ["0", "1"]
        assert llm.generate("abc", SamplingParams(max_tokens=4))[0].text == "abca"


@pytest.mark.parametrize("end", ["with", "shutdown", "forget"])
def test_no_process_is_left_behind(end: str) -> None:
    before = children()
    llm = LLM(worker_method="fork", device="cpu", core_factory=Script())
    pid = llm.info()["core_pid"]
    assert is_running(pid)
    if end == "with":
        with llm:
            pass
    elif end == "shutdown":
        llm.shutdown()
        llm.shutdown()
    else:
        del llm
        gc.collect()
    assert not is_running(pid)
    assert not children() - before


def test_an_engine_that_was_shut_down_says_so() -> None:
    for method in ("inproc", "fork"):
        llm = LLM(worker_method=method, device="cpu", core_factory=Script())
        llm.shutdown()
        with pytest.raises(EngineDeadError, match="was shut down: make a new engine"):
            llm.generate("a")


class Terminal(io.StringIO):
    """A stderr that is a terminal."""

    def isatty(self) -> bool:
        """It is."""
        return True


@pytest.mark.parametrize(
    ("terminal", "wished", "seconds", "shown"),
    [
        (False, None, 1.3, False),
        (True, None, 0.0, False),
        (True, None, 1.3, True),
        (True, False, 1.3, False),
        (False, True, 0.0, True),
    ],
)
def test_a_bar_is_shown_where_it_is_seen_and_takes_long_or_is_wished(
    monkeypatch: pytest.MonkeyPatch,
    terminal: bool,
    wished: bool | None,
    seconds: float,
    shown: bool,
) -> None:
    stderr = Terminal() if terminal else io.StringIO()
    looks = itertools.count()  # at the clock of the bar; however fast this machine is
    threads = set(threading.enumerate())
    with LLM(worker_method="inproc", core_factory=Script()) as llm:
        monkeypatch.setattr(sys, "stderr", stderr)
        monkeypatch.setattr("tqdm.std.time", lambda: seconds * next(looks))
        llm.generate(["a", "b"], [SamplingParams(max_tokens=n) for n in (2, 4)], use_tqdm=wished)
        monkeypatch.undo()
    assert ("generating" in stderr.getvalue()) is shown
    if shown:
        assert "2/2" in stderr.getvalue()
        assert "tokens/s" in stderr.getvalue()
    else:
        assert stderr.getvalue() == ""
    assert not set(threading.enumerate()) - threads


def output_of(code: str) -> str:
    """Run a program; return what it prints."""
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_engine_imports_nothing_heavy() -> None:
    code = """
    import sys
    import sample_engine
    mine = {name for name in sys.modules if name.startswith("sample_engine")}
    print(*sorted(mine))
    sample_engine.LLM, sample_engine.EngineConfig, sample_engine.SamplingParams
    heavy = ("torch", "numpy", "triton", "tqdm", "pynvml", "safetensors", "pytest_cudafork")
    print(*(name for name in heavy if name in sys.modules))
    """
    assert output_of(code) == "sample_engine\n\n"


def test_a_front_end_with_a_core_process_imports_no_torch() -> None:
    code = """
    import sys
    from sample_engine import LLM, SamplingParams
    from tests.engine.support.process import Script
    with LLM(core_factory=Script()) as llm:
        llm.generate(["abc"], SamplingParams(max_tokens=3))
        print(llm.info()["worker_method"], "torch" in sys.modules)
    """
    assert output_of(code) == "fork False\n"


def test_a_program_that_forgets_its_engine_ends_and_leaves_nothing() -> None:
    code = """
    import atexit
    signals = []
    atexit.register(lambda: print(signals))  # the last thing that happens
    from sample_engine import LLM, SamplingParams
    from sample_engine.process import client
    from sample_engine.process.rank_process import RankProcess
    from tests.engine.support.process import HANG_SECONDS, Script
    client._STOP_SECONDS = HANG_SECONDS
    RankProcess.send_signal = lambda process, number: signals.append(number)
    llm = LLM(worker_method="fork", device="cpu", core_factory=Script())
    stream = llm.generate_stream("abc", SamplingParams(max_tokens=10**9))
    next(stream)
    print(llm.info()["core_pid"])
    """
    pid, signals = output_of(code).splitlines()
    assert signals == "[]", "the core ends when it is asked to"
    wait_until_gone(int(pid))


TOUCHED = """
from pytest_cudafork.observe.driver import phantom
phantom.install("sm_90")
import ctypes, sys
from sample_engine import LLM, SamplingParams
from tests.engine.support.process import Script

def start(method):
    with LLM(worker_method=method, device="cpu", core_factory=Script()) as llm:
        (output,) = llm.generate("ab", SamplingParams(max_tokens=3))
        print(method, llm.info()["worker_method"], output.text, flush=True)

sys.stderr = sys.stdout
start("auto")
ctypes.CDLL("libcuda.so.1").cuInit(0)
start("auto")
start("fork")
"""


def test_a_parent_that_has_initialized_the_driver_gets_a_spawned_core() -> None:
    if native_libs.why_not():
        pytest.skip(f"needs the phantom driver: {native_libs.why_not()}")
    words = "the CUDA driver is initialized in this process (the driver says so)"
    assert output_of(TOUCHED).splitlines() == [
        "auto fork aba",
        "auto spawn aba",
        f"The engine core is started by 'spawn', not by 'fork' as asked for: {words}. See the "
        "reference of sample_engine, start methods.",
        "fork spawn aba",
    ]


PARALLEL_FIRST = """
import torch
torch.set_num_threads(2)
a = torch.rand(500, 500)
(a @ a).add_(1).sum()  # starts the pool of threads that a forked child does not have
from sample_engine import LLM, SamplingParams
with LLM(worker_method="fork", device="cpu", load_format="dummy", num_blocks=64) as llm:
    (output,) = llm.generate(["x" * 500], SamplingParams(max_tokens=3, ignore_eos=True))
    print(len(output.token_ids), llm.info()["worker_method"])
"""


def test_a_core_that_is_forked_after_parallel_work_does_not_hang() -> None:
    pytest.importorskip("torch")
    assert output_of(PARALLEL_FIRST) == "3 fork\n"


REAL: dict[str, Any] = {
    "load_format": "dummy",
    "device": "cpu",
    "num_blocks": 64,
    "max_num_seqs": 8,
}


def test_the_real_core_says_the_same_in_this_process_and_in_all_others() -> None:
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    prompts = ["def quick_sort(", "", "import os\n"]
    params = [
        SamplingParams(max_tokens=12, ignore_eos=True),
        SamplingParams(),
        SamplingParams(max_tokens=8, temperature=0.9, top_k=20, seed=3, ignore_eos=True),
    ]
    found = {}
    try:
        for method in ("inproc", "fork", "spawn", "forkserver"):
            with LLM(worker_method=method, **REAL) as llm:
                assert llm.info()["device"] == "cpu"
                outputs = llm.generate(prompts, params)
                found[method] = [(output.token_ids, output.error) for output in outputs]
    finally:
        torch.set_num_threads(threads)
    first = found["inproc"]
    assert [len(token_ids) for token_ids, _ in first] == [12, 0, 8]
    assert first[1][1] is not None
    assert "empty prompt" in first[1][1]
    assert all(other == first for other in found.values())

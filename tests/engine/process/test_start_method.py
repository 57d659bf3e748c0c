"""The choice of the start method: a table of facts, and the facts of real processes."""

from __future__ import annotations

import logging
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sample_engine.config import EngineConfig, WorkerMethod
from sample_engine.device.driver_probe import DriverAnswer, DriverState
from sample_engine.errors import ConfigError
from sample_engine.process import start_method
from sample_engine.process.start_method import (
    COMMON_ENV,
    METHOD_ENV,
    VLLM_ENV,
    ProcessFacts,
    choose_start_method,
    gather_facts,
    get_mp_context,
    maybe_force_spawn,
)
from tests.engine.support.process import HANG_SECONDS
from tests.engine.support.programs import run_python

AUTO, INPROC, FORK, SPAWN, FORKSERVER = WorkerMethod
CLEAN = DriverAnswer(DriverState.NOT_INITIALIZED, "the driver is clean")
TOUCHED = DriverAnswer(DriverState.INITIALIZED, "the driver is initialized")
UNKNOWN = DriverAnswer(DriverState.UNKNOWN, "nobody knows")
FACTS = st.builds(
    ProcessFacts,
    driver=st.sampled_from([CLEAN, TOUCHED, UNKNOWN]),
    system=st.sampled_from(["linux", "darwin"]),
    methods=st.just(("fork", "spawn", "forkserver")) | st.just(("spawn",)),
    threads=st.sampled_from([(), ("a",), ("a", "b")]),
    daemonic=st.booleans(),
    ray_actor=st.booleans(),
    wsl=st.booleans(),
    uses_gpu=st.booleans(),
    speculative=st.booleans(),
    chosen=st.sampled_from(["", "fork", "spawn", "forkserver"]),
)
# Each fact that speaks against a fork, and whether a fork that is asked for is still made.
AGAINST = {
    "the driver is initialized": (ProcessFacts(TOUCHED), False),
    "Ray actor": (ProcessFacts(CLEAN, ray_actor=True), False),
    "WSL": (ProcessFacts(CLEAN, wsl=True, uses_gpu=True), False),
    "nobody knows": (ProcessFacts(UNKNOWN), True),
    "not reliable on darwin": (ProcessFacts(CLEAN, system="darwin"), True),
    "speculative_config": (ProcessFacts(CLEAN, speculative=True, uses_gpu=True), True),
    "never gets: io, tick": (ProcessFacts(CLEAN, threads=("io", "tick")), True),
}


def test_auto_forks_where_nothing_speaks_against_it() -> None:
    decision = maybe_force_spawn(AUTO, {}, ProcessFacts(CLEAN))
    assert decision == (FORK, ("the driver is clean", "no other thread runs"), AUTO, False)


@pytest.mark.parametrize("word", AGAINST)
def test_auto_spawns_for_each_reason_and_says_it(word: str) -> None:
    decision = maybe_force_spawn(AUTO, {}, AGAINST[word][0])
    assert decision.method is SPAWN
    assert len(decision.reasons) == 1
    assert word in decision.reasons[0]
    assert not decision.forced


@pytest.mark.parametrize("word", AGAINST)
def test_a_fork_that_is_asked_for_is_made_unless_it_cannot_work(word: str) -> None:
    facts, may_fork = AGAINST[word]
    decision = maybe_force_spawn(FORK, {}, facts)
    assert decision.method is (FORK if may_fork else SPAWN)
    assert decision.forced is not may_fork
    assert word in decision.reasons[-1]


@pytest.mark.parametrize(
    "facts",
    [
        ProcessFacts(CLEAN, wsl=True),
        ProcessFacts(CLEAN, speculative=True),
        ProcessFacts(CLEAN, uses_gpu=True),
    ],
)
def test_what_matters_on_a_gpu_only_does_not_matter_without(facts: ProcessFacts) -> None:
    assert maybe_force_spawn(AUTO, {}, facts).method is FORK


def test_all_reasons_are_told_not_only_the_first() -> None:
    facts = ProcessFacts(
        TOUCHED, threads=("io",), ray_actor=True, wsl=True, uses_gpu=True, speculative=True
    )
    told = " ".join(maybe_force_spawn(FORK, {}, facts).reasons)
    for word in ("driver is initialized", "Ray", "WSL", "speculative_config", "io"):
        assert word in told


@pytest.mark.parametrize("value", list(WorkerMethod))
def test_the_environment_decides_where_the_program_does_not(value: WorkerMethod) -> None:
    decision = maybe_force_spawn(
        AUTO, {METHOD_ENV: f" {value.value.upper()} "}, ProcessFacts(CLEAN)
    )
    assert decision.method is (FORK if value is AUTO else value)
    if value is not AUTO:
        assert f"{METHOD_ENV}={value.value} is set" in decision.reasons


def test_the_program_counts_before_the_environment() -> None:
    decision = maybe_force_spawn(SPAWN, {METHOD_ENV: "fork"}, ProcessFacts(CLEAN))
    assert decision.method is SPAWN
    assert decision.reasons == ("worker_method='spawn'",)


def test_a_fork_that_the_environment_asks_for_is_overridden_too() -> None:
    decision = maybe_force_spawn(AUTO, {METHOD_ENV: "fork"}, ProcessFacts(TOUCHED))
    assert decision[0] is SPAWN
    assert decision.forced


@pytest.mark.parametrize("requested", list(WorkerMethod))
def test_a_wrong_value_in_the_environment_is_refused_with_the_list(requested: WorkerMethod) -> None:
    words = f"{METHOD_ENV}='thread' is not one of auto, inproc, fork, spawn, forkserver"
    with pytest.raises(ConfigError, match=words):
        maybe_force_spawn(requested, {METHOD_ENV: "thread"}, ProcessFacts(CLEAN))


FOR_ALL = {
    f"{VLLM_ENV}=spawn is set": ({VLLM_ENV: "Spawn "}, ProcessFacts(CLEAN)),
    f"{COMMON_ENV}=spawn is set": ({COMMON_ENV: "spawn"}, ProcessFacts(CLEAN)),
    "the program has chosen it: multiprocessing's start method is 'spawn'": (
        {},
        ProcessFacts(CLEAN, chosen="spawn"),
    ),
    "'spawn' is the default start method of this Python": (
        {},
        ProcessFacts(CLEAN, methods=("spawn", "fork")),
    ),
}


@pytest.mark.parametrize("words", FOR_ALL)
def test_auto_obeys_what_the_program_and_its_environment_say(words: str) -> None:
    environ, facts = FOR_ALL[words]
    decision = maybe_force_spawn(AUTO, environ, facts)
    assert decision.method is decision.requested is SPAWN
    assert words in decision.reasons[0]
    assert not decision.forced
    asked_of_the_engine = maybe_force_spawn(FORK, environ, facts)
    assert asked_of_the_engine[0] is FORK
    own = maybe_force_spawn(AUTO, {**environ, METHOD_ENV: "fork"}, facts)
    assert own[0] is FORK


def test_who_is_asked_for_all_counts_in_order() -> None:
    """An engine's variable, the program's own choice, a variable for all, Python's default."""
    environ = {VLLM_ENV: "fork", COMMON_ENV: "spawn"}
    facts = ProcessFacts(CLEAN, methods=("forkserver", "fork", "spawn"), chosen="spawn")
    assert maybe_force_spawn(AUTO, environ, facts).method is FORK
    del environ[VLLM_ENV]
    environ[COMMON_ENV] = "fork"
    assert maybe_force_spawn(AUTO, environ, facts).method is SPAWN
    # the default context has been used, and nobody is known to have chosen
    used = facts._replace(chosen="forkserver")
    assert maybe_force_spawn(AUTO, environ, used).method is FORK
    assert maybe_force_spawn(AUTO, {}, used).method is FORKSERVER
    assert maybe_force_spawn(AUTO, {COMMON_ENV: " "}, used).method is FORKSERVER


def test_a_fork_that_is_wished_for_all_is_overridden_with_a_warning() -> None:
    decision = maybe_force_spawn(AUTO, {VLLM_ENV: "fork"}, ProcessFacts(TOUCHED))
    assert decision[0] is SPAWN
    assert decision.forced


@pytest.mark.parametrize("name", [VLLM_ENV, COMMON_ENV])
@pytest.mark.parametrize("text", ["thread", "inproc", "auto"])
def test_a_wrong_value_of_others_is_refused_where_it_counts(name: str, text: str) -> None:
    words = f"{name}='{text}' is not one of fork, spawn, forkserver"
    with pytest.raises(ConfigError, match=words):
        maybe_force_spawn(AUTO, {name: text}, ProcessFacts(CLEAN))
    assert maybe_force_spawn(SPAWN, {name: text}, ProcessFacts(CLEAN)).method is SPAWN


def test_what_is_wished_for_all_does_not_keep_a_daemonic_process_from_running() -> None:
    facts = ProcessFacts(CLEAN, daemonic=True, chosen="spawn")
    assert maybe_force_spawn(AUTO, {VLLM_ENV: "spawn"}, facts).method is INPROC


def test_the_facts_know_the_method_that_the_program_has_chosen() -> None:
    code = """
    import multiprocessing
    from sample_engine.config import EngineConfig
    from sample_engine.process.start_method import choose_start_method, gather_facts
    assert gather_facts(EngineConfig(device="cpu")).chosen == ""
    multiprocessing.set_start_method("spawn")
    decision = choose_start_method(EngineConfig(device="cpu"))
    print(decision.method.value, decision.reasons[0])
    """
    environ = {k: v for k, v in os.environ.items() if k not in (METHOD_ENV, VLLM_ENV, COMMON_ENV)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    chosen = "the program has chosen it: multiprocessing's start method is 'spawn'"
    assert done.stdout == f"spawn {chosen}\n"


def test_a_daemonic_process_runs_the_core_itself_or_refuses() -> None:
    facts = ProcessFacts(CLEAN, daemonic=True)
    decision = maybe_force_spawn(AUTO, {}, facts)
    assert decision.method is INPROC
    assert "may have no children" in decision.reasons[0]
    with pytest.raises(ConfigError, match=r"worker_method='spawn': .* Use worker_method='inproc'"):
        maybe_force_spawn(SPAWN, {}, facts)


def test_a_method_that_the_system_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no 'forkserver', only spawn"):
        maybe_force_spawn(FORKSERVER, {}, ProcessFacts(CLEAN, methods=("spawn",)))


@given(st.sampled_from(WorkerMethod), st.sampled_from(WorkerMethod), FACTS)
def test_the_decision_keeps_its_rules_whatever_the_facts(
    requested: WorkerMethod, environment: WorkerMethod, facts: ProcessFacts
) -> None:
    asked = environment if requested is AUTO else requested
    try:
        decision = maybe_force_spawn(requested, {METHOD_ENV: environment.value}, facts)
    except ConfigError:
        assert (asked is not AUTO and facts.daemonic) or (
            (facts.chosen if asked is AUTO else asked.value) not in facts.methods
        )
        return
    assert decision.requested is asked or asked is AUTO
    assert decision.reasons
    assert decision.method is not AUTO
    overridden = decision.requested is FORK and decision.method is SPAWN
    assert decision.forced == overridden
    if facts.daemonic:
        assert decision.method is INPROC
    if decision.method is FORK:
        assert facts.driver is not TOUCHED
        assert not facts.ray_actor
        assert "fork" in facts.methods
    if asked not in (AUTO, FORK):
        assert decision.method is asked


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_context_is_that_of_multiprocessing(method: str) -> None:
    assert get_mp_context(method) is multiprocessing.get_context(method)


@pytest.mark.parametrize("method", [AUTO, INPROC])
def test_there_is_no_context_for_what_starts_no_process(method: WorkerMethod) -> None:
    with pytest.raises(ConfigError, match=f"{method.value!r} starts no process"):
        get_mp_context(method)


def test_the_facts_name_the_threads_that_run_and_not_the_one_that_asks() -> None:
    before = gather_facts(EngineConfig()).threads
    go = threading.Event()
    thread = threading.Thread(target=go.wait, name="a clock")
    thread.start()
    try:
        assert "a clock" in set(gather_facts(EngineConfig()).threads) - set(before)
        assert threading.current_thread().name not in gather_facts(EngineConfig()).threads
    finally:
        go.set()
        thread.join()


@pytest.mark.parametrize(("actor", "expected"), [(None, False), ("a0", True)])
def test_the_facts_know_a_ray_actor(
    actor: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = types.SimpleNamespace(
        is_initialized=lambda: True,
        get_runtime_context=lambda: types.SimpleNamespace(get_actor_id=lambda: actor),
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert gather_facts(EngineConfig()).ray_actor is expected


def test_the_facts_follow_the_configuration() -> None:
    facts = gather_facts(EngineConfig(device="cpu"))
    assert not facts.uses_gpu
    assert not facts.speculative
    speculative = {"method": "ngram", "num_speculative_tokens": 2}
    facts = gather_facts(EngineConfig(device="cuda:1", speculative_config=speculative))
    assert facts.uses_gpu
    assert facts.speculative


def test_an_overridden_fork_is_told_in_a_warning_with_its_reasons(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(start_method, "probe_driver", lambda: TOUCHED)
    monkeypatch.delenv(METHOD_ENV, raising=False)
    with caplog.at_level(logging.WARNING, logger="sample_engine"):
        assert choose_start_method(EngineConfig(worker_method=FORK, device="cpu")).method is SPAWN
    assert "started by 'spawn', not by 'fork' as asked for: the driver is init" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="sample_engine"):
        assert choose_start_method(EngineConfig(device="cpu")).method is SPAWN
    assert not caplog.records


def test_a_warning_is_seen_by_a_program_that_sets_up_no_logging() -> None:
    code = """
    from sample_engine.config import EngineConfig, WorkerMethod
    from sample_engine.process import start_method
    from sample_engine.device.driver_probe import DriverAnswer, DriverState
    start_method.probe_driver = lambda: DriverAnswer(DriverState.INITIALIZED, "it is")
    start_method.choose_start_method(EngineConfig(worker_method=WorkerMethod.FORK, device="cpu"))
    """
    done = run_python(code)
    assert done.returncode == 0
    assert done.stderr.startswith("The engine core is started by 'spawn', not by 'fork'")


def test_a_daemonic_process_is_recognized() -> None:
    context = multiprocessing.get_context("fork")
    reading, writing = context.Pipe(duplex=False)

    def tell() -> None:
        writing.send(gather_facts(EngineConfig(device="cpu")).daemonic)

    process = context.Process(target=tell, daemon=True)
    process.start()
    assert reading.poll(HANG_SECONDS)
    assert reading.recv() is True
    process.join()
    reading.close()
    writing.close()

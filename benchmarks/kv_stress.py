"""Lets engines share one store of KV blocks while they are killed at random.

Each engine completes prompts over and over, compares the tokens with those of an engine that shares
nothing, and is killed at a random moment; another one takes its place. The store is so small that
blocks are evicted all the time. Now and then the process that looks after the shared memory is
killed, too. At the end half of the engines are killed and half are told to stop. What must be:

- no wrong token, no block that is not whole, no error in any engine
- no engine that waits for ``--limit`` seconds between two reports or says nothing for ``--silent``.
  Waiting is what it neither computed nor stood in the queue for a core that others had, by the
  kernel's own count: so it does not depend on how busy the machine is
- nothing left: processes, shared memory, the port of the Redis server

Ends with status 1 if anything of it happened.

    python benchmarks/kv_stress.py --seconds 300 --save
    python benchmarks/kv_stress.py --seconds 60 --store redis
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from arguments import above_zero, at_least
from results_file import parser, publish, table

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT))

from sample_engine.kv_transfer.frame import HEADER_BYTES, why_not_whole  # noqa: E402
from sample_engine.kv_transfer.shared_folder import folder_path  # noqa: E402
from tests.engine.support.kv_transfer import janitors, redis_server  # noqa: E402

_TOKENS = 6
_PROMPTS = 12
_BLOCKS_IN_STORE = 15  # fewer than the prompts have
_BLOCK_BYTES = 65536 + HEADER_BYTES  # of the tiny model in float32
_PER_KILL = 6  # prompts that are completed between two kills, at least
_END_SECONDS = 60.0
Tokens = dict[str, tuple[int, ...]]


class Engine(NamedTuple):
    """An engine's process, and the pipe on which it reports each prompt."""

    process: Any
    reports: Connection


class Heard(NamedTuple):
    """When an engine was last heard of, how long it had run or been ready to, what it counted."""

    at: float
    ready: float  # seconds, see ready_seconds
    metrics: dict[str, Any]


def ready_seconds(pid: int | None) -> float:
    """How long a process's first thread has computed, or waited for nothing but a core."""
    try:
        on_core, in_queue, _ = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()
    except (OSError, ValueError):  # it has ended
        return 0.0
    return (int(on_core) + int(in_queue)) / 1e9


def prompts() -> list[str]:
    """Texts that begin alike and part at different places."""
    chance = random.Random(7)
    common = "\n".join(f"def f{number}(x): return x * {number}" for number in range(5))
    return [
        common[: chance.randrange(40, len(common))] + f"\n# variant {number}\ndef g(y):"
        for number in range(_PROMPTS)
    ]


def be_an_engine(config: dict[str, Any] | None, reports: Connection, seed: int) -> None:
    """Complete prompts until told to stop; without sharing, each once. Runs in its own process."""
    import torch

    torch.set_num_threads(1)
    from sample_engine import LLM, SamplingParams

    chance = random.Random(seed)
    # Its own cache is small, too: most of what it needs has to come from the store.
    llm = LLM(
        device="cpu",
        worker_method="inproc",
        max_model_len=512,
        num_blocks=40,
        max_num_seqs=2,
        kv_transfer_config=config,
    )
    params = SamplingParams(max_tokens=_TOKENS)
    with llm:
        texts = iter(prompts()) if config is None else iter(lambda: chance.choice(prompts()), None)
        for text in texts:
            [output] = llm.generate([text], params, use_tqdm=False)
            reports.send((text, output.token_ids, output.error, llm.metrics()))
            if reports.poll():
                return


class Stress:
    """The engines, and what is counted of them."""

    def __init__(self, options: argparse.Namespace, config: dict[str, Any]) -> None:
        self.options = options
        self.config = config
        self.chance = random.Random(options.seed)
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["__main__", "sample_engine.engine_core"])
        self.engines: list[Engine] = []
        self.last: dict[Connection, Heard] = {}
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.longest = self.longest_wait = 0.0
        self.expected: Tokens = {}

    def run(self) -> None:
        """Let them run, be killed and be replaced."""
        self.expected = self._alone()
        for _ in range(self.options.engines):
            self._start(self.config)
        end = time.monotonic() + self.options.seconds
        next_kill, enough = time.monotonic(), _PER_KILL
        while time.monotonic() < end and not self.wrong:
            self._hear(0.05)
            self._look_for_hangs()
            if time.monotonic() > next_kill and self.counts["prompts"] >= enough:
                enough = self.counts["prompts"] + _PER_KILL  # on a slow machine they get less far
                next_kill = time.monotonic() + self.chance.expovariate(1 / self.options.every)
                self._kill_one()
                self._look_at_blocks()
        if not self.counts["prompts"]:
            self.wrong.append("no engine completed anything")
        self._stop()

    def _alone(self) -> Tokens:
        """What each prompt is completed with where nothing is shared."""
        engine = self._start(None)
        found = {}
        with contextlib.suppress(EOFError):
            while True:
                text, tokens, _, _ = engine.reports.recv()
                found[text] = tokens
        self._forget(engine)
        if len(found) < _PROMPTS:
            raise RuntimeError("the engine that shares nothing ended early")
        return found

    def _start(self, config: dict[str, Any] | None) -> Engine:
        here, there = multiprocessing.Pipe()
        arguments = (config, there, self.chance.randrange(1 << 30))
        process = self.context.Process(target=be_an_engine, args=arguments)
        process.start()
        there.close()
        engine = Engine(process, here)
        self.engines.append(engine)
        self.last[here] = Heard(time.monotonic(), ready_seconds(process.pid), {})
        self.counts["started"] += 1
        return engine

    def _forget(self, engine: Engine) -> None:
        engine.process.join()
        self.engines.remove(engine)
        self._add(self.last.pop(engine.reports).metrics)
        engine.reports.close()

    def _add(self, metrics: dict[str, Any]) -> None:
        """Count what an engine had counted when it was last heard of."""
        shared = metrics.get("kv_transfer", {})
        for name in ("loaded_blocks", "saved_blocks", "evicted_blocks", "damaged_blocks"):
            self.counts[name] += shared.get(name, 0)
        self.counts["failures"] += shared.get("failures", 0)
        self.counts["computed_tokens"] += metrics.get("scheduled_tokens", 0)
        self.counts["fetched_tokens"] += metrics.get("external_cached_tokens", 0)

    def _hear(self, seconds: float) -> None:
        """Take what has been reported."""
        for pipe in wait([engine.reports for engine in self.engines], seconds):
            engine = next(each for each in self.engines if each.reports is pipe)
            try:
                text, tokens, error, metrics = engine.reports.recv()
            except (EOFError, OSError):
                engine.process.join()
                self.wrong.append(f"an engine ended by itself: {engine.process.exitcode}")
                self._forget(engine)
                continue
            self._measure(engine)
            now, ready = time.monotonic(), ready_seconds(engine.process.pid)
            self.last[engine.reports] = Heard(now, ready, metrics)
            self.counts["prompts"] += 1
            shared = metrics["kv_transfer"]
            if error or tokens != self.expected[text]:
                self.wrong.append(f"{tokens} instead of {self.expected[text]}: {error}")
            if shared["damaged_blocks"] or shared["failures"]:
                self.wrong.append(f"the store failed: {shared}")

    def _measure(self, engine: Engine) -> tuple[float, float]:
        """How long an engine has been silent, and how much of that it waited."""
        last = self.last[engine.reports]
        silent = time.monotonic() - last.at
        ready = ready_seconds(engine.process.pid)
        waited = max(0.0, silent - (ready - last.ready)) if ready else 0.0
        self.longest = max(self.longest, silent)
        self.longest_wait = max(self.longest_wait, waited)
        return silent, waited

    def _look_for_hangs(self) -> None:
        for engine in self.engines:
            silent, waited = self._measure(engine)
            if waited > self.options.limit or silent > self.options.silent:
                self.wrong.append(
                    f"process {engine.process.pid} is silent for {silent:.0f} s, in which it "
                    f"waited for {waited:.0f} s"
                )

    def _kill_one(self) -> None:
        """Kill an engine and start another; every tenth time the janitor is killed, too."""
        if not self.engines:
            return
        engine = self.chance.choice(self.engines)
        while engine.reports.poll():  # it is not to be taken for one that ended by itself
            self._hear(0)
            if engine not in self.engines:
                return
        engine.process.kill()
        self.counts["killed"] += 1
        self._forget(engine)
        self._start(self.config)
        if self.options.store == "memory" and self.counts["killed"] % 10 == 0:
            for pid in janitors(str(self._folder())):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.counts["janitors_killed"] += 1

    def _folder(self) -> Path:
        return folder_path("/dev/shm", self.config["kv_connector_extra_config"].get("name", ""))

    def _look_at_blocks(self) -> None:
        """Read all blocks that are there: a part of one must never be seen."""
        if self.options.store != "memory":
            return
        with contextlib.suppress(FileNotFoundError):
            for path in list(self._folder().glob("block-*")):
                with contextlib.suppress(FileNotFoundError):  # evicted meanwhile
                    data = path.read_bytes()
                    key, block = path.name.removeprefix("block-"), data[HEADER_BYTES:]
                    why = why_not_whole(key, data[:HEADER_BYTES], block)
                    self.counts["blocks_looked_at"] += 1
                    if why is not None:
                        self.wrong.append(f"{path.name}: {why}")

    def _stop(self) -> None:
        """End all engines, each second one by SIGKILL, and look for what is left."""
        for index, engine in enumerate(list(self.engines)):
            if index % 2:
                engine.process.kill()
            else:
                engine.reports.send("stop")
        for engine in list(self.engines):
            self._wait_for_the_end(engine)
            self._forget(engine)
        if self.options.store == "memory":
            self._look_for_leftovers(time.monotonic() + _END_SECONDS)

    def _wait_for_the_end(self, engine: Engine) -> None:
        while engine.process.exitcode is None:
            with contextlib.suppress(EOFError, OSError):  # its pipe may be full
                while engine.reports.poll(0.1):
                    engine.reports.recv()
            engine.process.join(0.1)
            silent, waited = self._measure(engine)
            if waited > self.options.limit or silent > self.options.silent:
                self.wrong.append(
                    f"process {engine.process.pid} does not end: told to {silent:.0f} s ago, it "
                    f"waited for {waited:.0f} s"
                )
                engine.process.kill()
                engine.process.join()

    def _look_for_leftovers(self, deadline: float) -> None:
        folder = self._folder()
        while time.monotonic() < deadline and (folder.exists() or janitors(str(folder))):
            time.sleep(0.02)
        if folder.exists():
            self.wrong.append(f"{folder} is left")
        if janitors(str(folder)):
            self.wrong.append(f"a janitor is left: {janitors(str(folder))}")


def main() -> int:
    """Run the stress and tell what came of it."""
    options = _options()
    os.environ["PYTHONPATH"] = f"{PROJECT}:{PROJECT / 'benchmarks'}"  # for the fork server
    os.environ["OMP_NUM_THREADS"] = "1"
    with contextlib.ExitStack() as stack:
        extra: dict[str, Any] = {
            "name": f"stress-{os.getpid()}",
            "max_bytes": _BLOCKS_IN_STORE * _BLOCK_BYTES,
        }
        if options.store == "redis":
            memory = ("--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru")
            extra = {"url": stack.enter_context(redis_server(*memory)), "timeout_seconds": 30.0}
        connector = {"memory": "SharedMemoryConnector", "redis": "RedisConnector"}[options.store]
        stress = Stress(options, {"kv_connector": connector, "kv_connector_extra_config": extra})
        stress.run()
    _tell(options, stress)
    return 1 if stress.wrong else 0


def _options() -> argparse.Namespace:
    made = parser("Engines on one store while they are killed at random.", rounds=1)
    made.add_argument("--seconds", type=above_zero, default=180.0, help="default 180")
    made.add_argument("--engines", type=at_least(1), default=8, help="default 8")
    made.add_argument("--store", choices=("memory", "redis"), default="memory")
    made.add_argument(
        "--every", type=above_zero, default=1.0, help="seconds between kills, on average"
    )
    made.add_argument("--limit", type=above_zero, default=10.0, help="seconds that one may wait")
    made.add_argument("--silent", type=above_zero, default=600.0, help="that one may say nothing")
    made.add_argument("--seed", type=int, default=1)
    return made.parse_args()


def _tell(options: argparse.Namespace, stress: Stress) -> None:
    rows = [[name.replace("_", " "), str(count)] for name, count in sorted(stress.counts.items())]
    rows.append(["longest time between two reports of an engine", f"{stress.longest:.1f} s"])
    rows.append(["longest that an engine waited between two", f"{stress.longest_wait:.1f} s"])
    rows.append(["went wrong", str(len(stress.wrong))])
    text = "\n".join([table(["", "count"], rows), *(f"\nWRONG: {words}" for words in stress.wrong)])
    data = {
        "settings": {name: value for name, value in vars(options).items() if name != "save"},
        "counts": dict(stress.counts),
        "longest_seconds": round(stress.longest, 1),
        "longest_wait_seconds": round(stress.longest_wait, 1),
        "wrong": stress.wrong,
    }
    title = f"{options.engines} engines that share KV blocks ({options.store}), killed at random"
    publish(f"kv_stress_{options.store}", title, text, data, save=options.save)


if __name__ == "__main__":
    sys.exit(main())

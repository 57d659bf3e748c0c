"""The sample engine's questions to a real driver, and its core's process beside a real GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parents[2]
NEEDED = [name for name in ("torch", "msgspec", "tqdm") if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(NEEDED), reason=f"needs {', '.join(NEEDED)}"),
]


def run(code: str, **environment: str | None) -> Any:
    """Run a program of its own; return what its last line says in JSON."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT), *sys.path])}
    for name, value in environment.items():
        env.pop(name, None)
        if value is not None:
            env[name] = value
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=env,
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


PLATFORM = """
import json, os
from sample_engine.device import platform
from sample_engine.device.driver_probe import probe_driver

def of_platform():
    return [
        [gpu.name, list(platform.device_capability(i)), platform.total_memory(i)]
        for i, gpu in enumerate(platform.visible_gpus().devices)
    ]

mine = of_platform()
before = probe_driver().state.value
import torch
count = torch.cuda.device_count()
theirs = [
    [p.name, [p.major, p.minor], p.total_memory]
    for p in map(torch.cuda.get_device_properties, range(count))
]
print(json.dumps([mine, before, theirs, platform.visible_gpus().source]))
"""


def uuid() -> str:
    """The UUID of the first GPU."""
    from sample_engine.device.platform import visible_gpus

    return visible_gpus(text="0").devices[0].uuid


@pytest.mark.parametrize("visible", [None, "", "0", "-1", "0,0", "7", "UUID", "UUID, cut"])
@pytest.mark.parametrize("source", ["pynvml", "nvidia-smi"])
def test_the_platform_says_what_torch_says_and_touches_nothing(
    visible: str | None, source: str
) -> None:
    if visible is not None and visible.startswith("UUID"):
        visible = uuid()[: 10 if "cut" in visible else None]
    code = PLATFORM
    if source == "nvidia-smi":
        code = "import sys; sys.modules['pynvml'] = None\n" + code
    mine, before, theirs, asked = run(code, CUDA_VISIBLE_DEVICES=visible)
    assert before == "not initialized"
    assert len(mine) == len(theirs)
    for (name, capability, memory), (their_name, their_capability, their_memory) in zip(
        mine, theirs, strict=True
    ):
        assert name == their_name
        assert capability == their_capability
        assert abs(memory - their_memory) < 0.05 * their_memory  # the driver keeps a part
    if mine:
        assert asked in (source, "nvidia-smi")  # pynvml may not be installed


PROBE = """
import ctypes, json, os
from sample_engine.device.driver_probe import probe_driver

def truth():
    \"\"\"Whether a child forked now could use CUDA: it says what cuInit answers there.\"\"\"
    reading, writing = os.pipe()
    if os.fork() == 0:
        answer = ctypes.CDLL("libcuda.so.1").cuInit(0)
        os.write(writing, b"%d" % answer)
        os._exit(0)
    os.wait()
    return int(os.read(reading, 10)) != 0

found = []
def look(what):
    found.append([what, probe_driver().state.value, truth()])

look("nothing")
import torch
look("import torch")
torch.cuda.device_count()
look("device_count")
{touch}
look("touch")
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    "touch",
    [
        "torch.cuda.is_available()",
        "torch.zeros(1).pin_memory()",
        "torch.zeros(1, device='cuda')",
        "ctypes.CDLL('libcuda.so.1').cuInit(0)",
    ],
)
def test_the_probe_says_what_a_forked_child_finds(touch: str) -> None:
    environment = {"PYTORCH_NVML_BASED_CUDA_CHECK": None}
    for what, said, poisoned in run(PROBE.format(touch=touch), **environment):
        assert said == ("initialized" if poisoned else "not initialized"), what
        assert poisoned == (what == "touch")


ENGINE = """
import json, logging, sys
from sample_engine import LLM, SamplingParams
from sample_engine.device.driver_probe import probe_driver
{before}
logged = []
handler = logging.Handler()
handler.emit = lambda record: logged.append(record.getMessage())
logging.getLogger("sample_engine").addHandler(handler)
prompts = ["def quick_sort(", "", "import os\\n"]
params = SamplingParams(max_tokens=24, ignore_eos=True)
with LLM({settings}, device="cuda", load_format="dummy", num_blocks=256) as llm:
    outputs = [output.token_ids for output in llm.generate(prompts, params)]
    print(json.dumps({{
        "outputs": outputs,
        "info": llm.info(),
        "logged": [line for line in logged if "started by" in line],
        "driver": probe_driver().state.value,
        "torch": "torch" in sys.modules,
    }}))
"""


def engine(settings: str, before: str = "") -> Any:
    """Generate with an engine on the GPU; ``before`` runs in the program first."""
    return run(ENGINE.format(settings=settings, before=before), SAMPLE_ENGINE_WORKER_METHOD=None)


def test_all_start_methods_generate_the_same_and_the_front_end_stays_clean() -> None:
    found = {
        method: engine(f"worker_method={method!r}") for method in ("fork", "spawn", "forkserver")
    }
    for method, one in found.items():
        assert one["info"]["worker_method"] == method
        assert one["info"]["device"] == "cuda:0"
        assert one["driver"] == "not initialized"
        assert not one["torch"]
        assert [len(tokens) for tokens in one["outputs"]] == [24, 0, 24]
        assert one["outputs"] == found["fork"]["outputs"]
    inproc = engine("worker_method='inproc'")
    assert inproc["outputs"] == found["fork"]["outputs"]
    assert inproc["driver"] == "initialized"


@pytest.mark.parametrize(
    "touch",
    [
        "import torch; torch.zeros(1, device='cuda')",
        "import torch; torch.cuda.is_available()",
        "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)",
    ],
)
def test_a_parent_that_has_touched_cuda_gets_a_spawned_core(touch: str) -> None:
    for settings, warnings in (("worker_method='auto'", 0), ("worker_method='fork'", 1)):
        one = engine(settings, before=touch)
        assert one["info"]["worker_method"] == "spawn"
        assert any("driver is initialized" in reason for reason in one["info"]["worker_reasons"])
        assert len(one["logged"]) == warnings
        assert [len(tokens) for tokens in one["outputs"]] == [24, 0, 24]


def test_auto_forks_in_a_clean_parent() -> None:
    one = engine("seed=0", before="import torch; torch.cuda.device_count()")
    assert one["info"]["worker_method"] == "fork"


KILLED = """
import json, os, signal, threading, time
from sample_engine import LLM, SamplingParams
from sample_engine.errors import EngineDeadError
with LLM(worker_method="{method}", device="cuda", load_format="dummy", num_blocks=256) as llm:
    pid = llm.info()["core_pid"]
    stream = llm.generate_stream(["ab", "cd"], SamplingParams(max_tokens=2000, ignore_eos=True))
    next(stream)
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    try:
        for chunk in stream:
            pass
    except EngineDeadError as error:
        print(json.dumps([str(error), time.monotonic() - began]))
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_core_on_a_gpu_that_is_killed_is_noticed(method: str) -> None:
    text, seconds = run(KILLED.format(method=method))
    assert "was killed by SIGKILL" in text
    assert seconds < 10  # the kernel takes a context apart before the process is gone

"""The witness on CUDA builds of torch: only what the native witness did not see.

No such build is at hand here: functions in C with the right names stand in for it.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.torch import require_cpu_build_of_torch, run

require_cpu_build_of_torch()

# ``list.pop`` is a function in C that answers what we like and counts how often it was asked.
BUILD = """
    import types
    import torch

    counts, inits, driver = [2] * 100, [None] * 100, []
    torch._C._cuda_getDeviceCount = counts.pop
    torch._C._cuda_init = inits.pop
    torch._C._cuda_getDevice = lambda: 0
    torch._C._cuda_getArchFlags = lambda: None
    torch._C._cuda_isInBadFork = lambda: bool(poison)
    torch.cuda._is_in_bad_fork = torch._C._cuda_isInBadFork
    torch.cuda._cudart = types.SimpleNamespace()


    class Native:
        # A driver that sees the first of all calls; later ones end in cudart's cache.
        def touch_count(self):
            return min(1, 200 - len(counts) - len(inits)) if SEES else 0


    witness._native = Native()
    entries = lambda: [t["entry"] for t in log]
"""


def on_a_build(script: str, tmp_path: Path, *, face: str, sees: bool) -> object:
    body = "\n".join(line.removeprefix("    ") for line in (BUILD + script).splitlines())
    return run(f"SEES = {sees}\n{body}", tmp_path, face=face)


def test_a_touch_the_driver_saw_is_left_to_it_and_one_below_its_sight_is_recorded(
    tmp_path: Path,
) -> None:
    script = """
    witness.install()
    torch.cuda.is_available()
    out.append([entries(), witness.touched])   # cuInit: the driver's to record
    torch.cuda.is_available()
    out.append([entries(), log[-1]["again"]])  # cudart kept its answer
    torch.cuda.current_device()
    out.append(entries())
    torch.cuda.current_device()                # initialized: nothing new
    torch.cuda.is_available()
    out.append(entries())
    poison.append(True)
    out.append(attempt("torch.cuda.current_device()"))
    witness.uninstall()
    out.append(torch._C._cuda_getDeviceCount.__class__.__name__)
    """
    out = on_a_build(script, tmp_path, face="real", sees=True)
    assert isinstance(out, list)
    counted, initialized = "torch._C._cuda_getDeviceCount", "torch._C._cuda_init"
    assert out[0] == [[], False]
    assert out[1] == [[counted], True]
    assert out[2] == out[3] == [counted, initialized]
    assert out[4]["answer"].startswith("RuntimeError: Cannot re-initialize CUDA")
    assert [(t["entry"], t["poisoned"]) for t in out[4]["touches"]] == [
        ("torch.cuda._lazy_init", True)
    ]
    assert out[5] == "builtin_function_or_method"


def test_without_a_native_witness_every_touch_is_recorded_once(tmp_path: Path) -> None:
    script = """
    witness._native = None
    witness.install()
    torch.cuda.is_available()
    torch.cuda.current_device()
    out = entries()
    """
    out = on_a_build(script, tmp_path, face="real", sees=False)
    assert out == ["torch._C._cuda_getDeviceCount", "torch._C._cuda_init"]


def test_a_missing_nvml_does_not_send_device_count_to_the_driver(tmp_path: Path) -> None:
    """A machine with a GPU has NVML, and counts devices without the driver (fact 3, trap e)."""
    script = """
    torch.cuda._raw_device_count_nvml = lambda: -1
    for face in ("real", "absent"):
        back = witness.become(face)
        before = len(log)
        torch.cuda.device_count()
        out.append(entries()[before:])
    os.environ["CUDA_VISIBLE_DEVICES"] = "MIG-1"  # counted by the driver, NVML or not
    before = len(log)
    torch.cuda.device_count()
    out.append(entries()[before:])
    """
    out = on_a_build(script, tmp_path, face="real", sees=False)
    assert out == [["torch._C._cuda_getDeviceCount"], [], ["torch._C._cuda_getDeviceCount"]]


def test_the_present_face_goes_over_the_names_of_the_build_and_comes_off_again(
    tmp_path: Path,
) -> None:
    script = """
    torch.version.cuda = "13.0"
    before = dict(vars(torch._C))
    back = witness.become("sm_90x2")
    out += [torch.cuda.is_available(), torch.cuda.device_count(), torch.version.cuda]
    out += [attempt("torch.cuda.get_device_capability()")["answer"], len(counts), len(inits)]
    out.append("does not compute" in attempt("torch.ones(1, device='cuda')")["answer"])
    witness.uninstall()
    out.append({n: 0 for n, v in vars(torch._C).items() if before.get(n) is not v})
    """
    out = on_a_build(script, tmp_path, face="absent", sees=False)
    assert out == [True, 2, "13.0", "(9, 0)", 100, 100, True, {}]


def test_rows_for_builds_without_cuda_stay_out_and_pinning_counts_only_when_poisoned(
    tmp_path: Path,
) -> None:
    script = """
    witness.install()
    for expression in ("torch.accelerator.current_device_index()", "torch.ones(1).pin_memory()"):
        out.append([touch["entry"] for touch in attempt(expression)["touches"]])
    poison.append(True)
    out.append([t["entry"] for t in attempt("torch.zeros(1).pin_memory()")["touches"]])
    """
    out = on_a_build(script, tmp_path, face="absent", sees=False)
    assert out == [[], [], ["torch.Tensor.pin_memory"]]

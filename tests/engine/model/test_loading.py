"""Models and heads by name: from files, or random ones; what is missing is said by name."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sample_engine.errors import WeightsError
from sample_engine.model.eagle_head import EagleConfig
from sample_engine.model.llama import Llama
from sample_engine.model.loading import load_eagle_head, load_model, read_config
from tests.engine.support.model import SMALL
from tests.engine.support.programs import run_python
from tests.engine.support.weights import save


def test_a_saved_head_comes_back(tmp_path: Path) -> None:
    folder = save(tmp_path)

    head = load_eagle_head(str(folder), device="cpu", dtype=torch.bfloat16)

    stored = load_file(folder / "eagle.safetensors")
    assert {name: value.dtype for name, value in head.state_dict().items()} == dict.fromkeys(
        stored, torch.bfloat16
    )
    assert all(torch.equal(value, stored[name]) for name, value in head.state_dict().items())
    assert head.config == EagleConfig.for_target(SMALL)


@pytest.mark.parametrize("load", [load_model, load_eagle_head], ids=["model", "head"])
def test_dummies_depend_on_the_seed_alone(load: Callable[..., Any]) -> None:
    first, same, other = (
        load("tiny", load_format="dummy", device="cpu", dtype=torch.bfloat16, seed=seed)
        for seed in (1, 1, 2)
    )

    states = [dict(module.state_dict()) for module in (first, same, other)]
    matrices = [name for name, value in states[0].items() if value.dim() > 1]
    assert all(value.dtype == torch.bfloat16 for value in states[0].values())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert all(not torch.equal(states[0][name], states[2][name]) for name in matrices)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_weights_on_a_cpu_lie_as_their_products_read_them(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    folder = save(tmp_path)
    model = load_model(str(folder), device="cpu", dtype=dtype)
    stored = load_file(folder / "model.safetensors")
    down = model.layers[0].mlp.down_proj.weight
    assert torch.equal(down, stored["model.layers.0.mlp.down_proj.weight"].to(dtype))
    assert (down.t() if dtype == torch.float32 else down).is_contiguous()
    assert not down.requires_grad
    assert model.embed_tokens.weight.is_contiguous(), "it is read by rows"


def test_loading_does_not_import_the_compiler() -> None:
    """It takes a second, and each process of an engine would wait for it."""
    done = run_python("""
        import sys
        import torch
        from sample_engine.model.loading import load_eagle_head, load_model
        for load in (load_model, load_eagle_head):
            load("tiny", device="cpu", dtype=torch.float32)
            load("tiny", load_format="dummy", device="cpu", dtype=torch.float32)
        print("torch._dynamo" in sys.modules)
    """)
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr


def test_a_model_that_is_made_for_training_begins_with_random_numbers() -> None:
    model = Llama(SMALL)
    for name, value in model.named_parameters():
        if value.dim() > 1:
            assert value.std() > 0.01, name


def test_the_eight_billion_shape_has_its_parameters() -> None:
    with torch.device("meta"):
        model = Llama(read_config("llama-3-8b"))

    assert sum(parameter.numel() for parameter in model.parameters()) == 8_030_261_248


@pytest.mark.gpu
def test_a_dummy_of_eight_billion_parameters_is_made_on_the_gpu_alone() -> None:
    script = """
import resource, torch
from sample_engine.model.loading import load_model
torch.zeros(1, device="cuda")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = load_model("llama-3-8b", load_format="dummy", device="cuda", dtype=torch.bfloat16, seed=0)
peak = torch.cuda.max_memory_allocated() / 2**30
assert 14.9 < peak < 17, peak
assert {(p.device.type, p.dtype) for p in model.parameters()} == {("cuda", torch.bfloat16)}
weight = model.layers[31].mlp.down_proj.weight
assert 0.9 < float(weight.float().std()) * weight.shape[1] ** 0.5 < 1.1
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
assert grown < 2, grown
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=240)


def test_a_shape_without_weights_says_how_to_get_a_model() -> None:
    with pytest.raises(WeightsError, match="load_format='dummy'"):
        load_model("llama-3-8b", device="cpu", dtype=torch.float32)


@pytest.mark.parametrize("file", ["model", "eagle"])
def test_missing_weights_are_named(tmp_path: Path, file: str) -> None:
    folder = save(tmp_path)
    (folder / f"{file}.safetensors").unlink()
    load = load_model if file == "model" else load_eagle_head

    words = {"model": "no weights file '.*model.safetensors'.*dummy", "eagle": "needs a draft head"}
    with pytest.raises(WeightsError, match=words[file]):
        load(str(folder), device="cpu", dtype=torch.float32)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({}, "carries no 'config'"),
        ({"config": "{"}, "cannot be read"),
        ({"config": "[]"}, "cannot be read"),
        ({"config": '{"layer": {}, "aux_layers": [0]}'}, "cannot be read"),
        ({"config": '{"layer": 5, "aux_layers": [0]}'}, "cannot be read"),
        ({"config": "[" * 100_000}, "cannot be read"),
    ],
)
def test_a_head_without_its_configuration_is_refused(
    tmp_path: Path, metadata: dict[str, str], words: str
) -> None:
    path = save(tmp_path) / "eagle.safetensors"
    save_file(load_file(path), path, metadata={"format": "pt", **metadata})

    with pytest.raises(WeightsError, match=words):
        load_eagle_head(str(tmp_path), device="cpu", dtype=torch.float32)


@pytest.mark.parametrize(
    "change", [{"hidden_size": 16}, {"vocab_size": 258}, {"num_hidden_layers": 2}]
)
def test_a_head_of_another_model_is_refused(tmp_path: Path, change: dict[str, int]) -> None:
    ours = save(tmp_path / "ours", dataclasses.replace(SMALL, **change))  # type: ignore[arg-type]
    theirs = save(tmp_path / "theirs")
    (theirs / "eagle.safetensors").replace(ours / "eagle.safetensors")

    with pytest.raises(WeightsError, match="is of another model"):
        load_eagle_head(str(ours), device="cpu", dtype=torch.float32)

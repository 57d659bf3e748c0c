"""Graph managers of other packages on the software graph, as published and with planted bugs.

A test file that ``foreign_managers.py`` runs, with the packages' modules on the path, under a
present face and ``--cuda-fork-graphs=software``. As published each must compute what eager code
computes; with a bug planted into a method of it, that must be told. The bugs are of the mechanisms
that are known from such managers: something is not refreshed before the replay, a graph is filed
under the wrong key, the memory is another one than the graph's.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import logging
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_cudafork import ReplayDiffersError, assert_replay_equals_eager

Plant = Callable[[pytest.MonkeyPatch], None]


def without(owner: type, method: str, dropped: str) -> Plant:
    """Return what takes the statements with a call or a target named *dropped* out of a method."""

    class Dropping(ast.NodeTransformer):
        count = 0

        def _drop(self, node: ast.stmt, named: ast.AST) -> ast.AST:
            if getattr(named, "attr", getattr(named, "id", "")) != dropped:
                return node
            self.count += 1
            return ast.copy_location(ast.Pass(), node)

        def visit_Expr(self, node: ast.Expr) -> ast.AST:
            return self._drop(node, getattr(node.value, "func", node.value))

        def visit_Assign(self, node: ast.Assign) -> ast.AST:
            return self._drop(node, node.targets[0])

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        function = inspect.unwrap(getattr(owner, method))
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        dropping = Dropping()
        tree = ast.fix_missing_locations(dropping.visit(tree))
        assert dropping.count, f"{method} has no {dropped}"
        names: dict[str, Any] = {}
        exec(compile(tree, function.__code__.co_filename, "exec"), function.__globals__, names)
        monkeypatch.setattr(owner, method, names[method])

    return plant


def as_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Change nothing."""


def load(name: str, stubs: dict[str, dict[str, Any]]) -> ModuleType:
    """Execute one module of a package; ``stubs`` stand for what it imports of its package.

    The package itself is not imported: that needs a server's dependencies, or a GPU.
    """
    if name in sys.modules:
        return sys.modules[name]
    *_, top = parents = [name.rpartition(".")[0]]
    while "." in top:
        top = top.rpartition(".")[0]
        parents.append(top)
    for path, attributes in [*((each, {}) for each in reversed(parents)), *stubs.items()]:
        made = sys.modules.setdefault(path, ModuleType(path))
        made.__path__ = []
        vars(made).update(attributes)
    file = Path(*name.split(".")).with_suffix(".py")
    found = next(Path(each) / file for each in sys.path if (Path(each) / file).exists())
    spec = importlib.util.spec_from_file_location(name, found)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- SGLang: metadata of attention, computed by a graph --------------------------------------------


class Backend:
    """An attention backend whose metadata is computed from static lengths."""

    attn_backend_list: Any = None
    forward_metadata: Any = None

    def __init__(self, scale: int, others: Any = None) -> None:
        self.scale, self.attn_backend_list = scale, others

    def init_forward_metadata_out_graph(self, view: Any) -> None:
        """Compute the metadata of this backend and of those below it."""
        self.forward_metadata = SimpleNamespace(starts=torch.cumsum(view.lengths, 0) * self.scale)
        for other in self.attn_backend_list or ():
            other.init_forward_metadata_out_graph(view)


def glue_module() -> Any:
    """Load the module with ``MetadataGlueGraph``."""
    return load("sglang.srt.model_executor.runner.metadata_glue_graph", {})


def glue_plants() -> dict[str, Plant]:
    """Return it as published and with bugs."""
    glue = glue_module().MetadataGlueGraph

    def one_key(monkeypatch: pytest.MonkeyPatch) -> None:
        run = glue.run
        monkeypatch.setattr(
            glue, "run", lambda self, backend, view, key: run(self, backend, view, 0)
        )

    return {
        "as published": as_published,
        "metadata is not installed again (replay-plan-not-refreshed)": without(
            glue, "run", "forward_metadata"
        ),
        "the replay is left out (replay-plan-not-refreshed)": without(glue, "run", "replay"),
        "one graph for all keys (capture-key-mismatch)": one_key,
    }


def run_glue() -> None:
    """Two batch sizes in turn, each with static lengths of its own."""
    glue, inner = glue_module().MetadataGlueGraph("cuda"), Backend(2)
    backend = Backend(1, [inner])
    views = {
        size: SimpleNamespace(lengths=torch.arange(1, size + 1, device="cuda")) for size in (4, 2)
    }

    def step(size: int) -> tuple[Any, Any]:
        glue.run(backend, views[size], size)
        return backend.forward_metadata.starts, inner.forward_metadata.starts

    for _ in range(4):
        for size in views:
            step(size)
    assert not glue.disabled
    four, two = views[4].lengths, views[2].lengths

    def eager(four: Any, two: Any) -> Any:
        return [torch.cumsum(each, 0) * scale for each in (two, four) for scale in (1, 2)]

    assert_replay_equals_eager(
        eager,
        [four, two],
        replay=lambda: [*step(2), *step(4)],
        vary=[lambda: (four.fill_(7), two.fill_(3))],
    )


# -- SGLang: one step of a denoiser ----------------------------------------------------------------


def denoise_module() -> Any:
    """Load the module with ``VLADenoiseGraphRunner``."""

    class Cache(tuple[Any, ...]):
        __slots__ = ()

    class Context(SimpleNamespace):
        pass

    pool: list[Any] = []

    def shared_pool(device_module: Any) -> Any:
        pool[:] = pool or [device_module.graph_pool_handle()]
        return pool[0]

    return load(
        "sglang.multimodal_gen.runtime.vla.cuda_graph",
        {
            "sglang.multimodal_gen.runtime.utils": {},
            "sglang.multimodal_gen.runtime.utils.logging_utils": {"init_logger": logging.getLogger},
            "sglang.multimodal_gen.runtime.vla.prefix_cache": {
                "PrefixContext": Context,
                "VLADensePrefixCache": Cache,
            },
            "sglang.srt": {},
            "sglang.srt.distributed": {},
            "sglang.srt.distributed.device_communicators": {},
            "sglang.srt.distributed.device_communicators.pynccl_allocator": {
                "set_graph_pool_id": lambda pool: None
            },
            "sglang.srt.model_executor": {},
            "sglang.srt.model_executor.runner_utils": {},
            "sglang.srt.model_executor.runner_utils.pool": {
                "get_or_create_global_graph_memory_pool": shared_pool
            },
        },
    )


def denoise_plants() -> dict[str, Plant]:
    """Return it as published and with bugs."""
    runner = denoise_module().VLADenoiseGraphRunner

    def inputs_of(name: str) -> Plant:
        def plant(monkeypatch: pytest.MonkeyPatch) -> None:
            capture = runner._capture

            def capturing(self: Any, *args: Any) -> Any:
                captured = capture(self, *args)
                # What is refreshed before a replay is not what the graph reads.
                captured.read_by_graph = getattr(captured, name)
                setattr(captured, name, captured.read_by_graph.clone())
                return captured

            monkeypatch.setattr(runner, "_capture", capturing)

        return plant

    return {
        "as published": as_published,
        "the prefix is not refreshed (replay-plan-not-refreshed)": without(
            runner, "capture_or_run", "_sync_context_if_needed"
        ),
        "the inputs are not refreshed (padding-stale)": without(runner, "capture_or_run", "copy_"),
        "another buffer is refreshed (pointer-changed)": inputs_of("static_timestep"),
    }


def run_denoise() -> None:
    """A step that attends to a prefix, whose context changes from call to call."""
    module = denoise_module()
    torch.manual_seed(0)
    keys, values = torch.randn(1, 5, 8, device="cuda"), torch.randn(1, 5, 8, device="cuda")
    context = module.PrefixContext(
        past_key_values=((keys, values, None),),
        prefix_pad_masks=torch.ones(1, 5, dtype=torch.bool, device="cuda"),
        prefix_len=5,
        layout={"mutable_graph_output": True},
        cache_key_digest=None,
    )
    x, time = torch.randn(1, 3, 8, device="cuda"), torch.rand(1, device="cuda")

    def denoise(context: Any, x: Any, time: Any) -> Any:
        ((keys, values, _),) = context.past_key_values
        scores = (x @ keys.transpose(1, 2)).masked_fill(~context.prefix_pad_masks[:, None], -1e9)
        return x - time[:, None, None] * (scores.softmax(-1) @ values)

    runner = module.VLADenoiseGraphRunner(max_entries=2)
    signature = module.VLADenoiseGraphSignature(1, 5, True, 3, 8, "float32", "none")

    def step() -> Any:
        return runner.capture_or_run(signature, denoise, context, x, time)

    step()
    assert_replay_equals_eager(
        lambda x, time, keys, values: denoise(context, x, time),
        [x, time, keys, values],
        replay=step,
        vary=[lambda: (x.mul_(2), time.fill_(0.25), keys.neg_())],
    )
    info = runner.cache_info()
    assert info.captures == 1
    assert info.failures == 0
    assert info.hits > 3


# -- transformers: continuous batching -------------------------------------------------------------


def batching_plants() -> dict[str, Plant]:
    """Return it as published and with bugs."""
    runner = importlib.import_module(
        "transformers.generation.continuous_batching.model_runner"
    ).ModelRunner
    values = importlib.import_module(
        "transformers.generation.continuous_batching.input_outputs"
    ).ContinuousBatchingIOs

    def moved(monkeypatch: pytest.MonkeyPatch) -> None:
        kwargs = values.get_model_kwargs

        def copied(self: Any, *args: Any, **options: Any) -> Any:
            made = kwargs(self, *args, **options)
            made["input_ids"] = made["input_ids"].clone()
            return made

        monkeypatch.setattr(values, "get_model_kwargs", copied)

    return {
        "as published": as_published,
        "the first result is not computed (lazy-init-skipped)": without(
            runner, "_capture_graph", "forward_fn"
        ),
        "static inputs keep what an earlier batch left (padding-stale)": without(
            values, "prepare_batch_tensors", "_reset_static_tensors"
        ),
        "the graph reads tokens elsewhere (pointer-changed)": moved,
    }


def run_batching() -> None:
    """Texts of a small model, with graphs and without."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=64,
            max_position_embeddings=128,
        )
    )
    model = model.eval().to("cuda")
    texts, replays = [], []
    replay = torch.cuda.CUDAGraph.replay

    def counted(self: Any) -> None:
        replays.append(self)
        replay(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda.CUDAGraph, "replay", counted)
        for graphs in (True, False):
            found = model.generate_batch(
                [[8], [1, 2, 3, 4], [5, 6, 7]],
                generation_config=GenerationConfig(
                    max_new_tokens=8, do_sample=False, eos_token_id=-1, pad_token_id=0
                ),
                continuous_batching_config=ContinuousBatchingConfig(
                    page_size=16,
                    num_blocks=16,
                    max_batch_tokens=32,
                    max_requests_per_batch=1,
                    use_cuda_graph=graphs,
                    use_async_batching=False,
                ),
            )
            texts.append([each.generated_tokens for each in found.values()])
    assert len(texts[1]) == 3
    if texts[0] != texts[1]:
        raise ReplayDiffersError(f"texts differ: {texts[0]} with graphs, {texts[1]} without")
    assert len(replays) > 3


MANAGERS: dict[str, tuple[Callable[[], dict[str, Plant]], Callable[[], None]]] = {
    "sglang: MetadataGlueGraph": (glue_plants, run_glue),
    "sglang: VLADenoiseGraphRunner": (denoise_plants, run_denoise),
    "transformers: continuous batching": (batching_plants, run_batching),
}
_FORMS = 4  # as published, and with three bugs
CASES = [(name, which) for name in MANAGERS for which in range(_FORMS)]


@pytest.mark.parametrize(("name", "which"), CASES)
def test_manager(
    name: str,
    which: int,
    graph_backend: Any,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """Run one manager, as published or with one bug."""
    assert graph_backend.name == "software"
    plants, run = MANAGERS[name]
    forms = list(plants().items())
    assert len(forms) == _FORMS
    words, plant = forms[which]
    record_property("manager", name)
    record_property("planted", words)
    plant(monkeypatch)
    if plant is as_published:
        run()
        return
    with pytest.raises((ReplayDiffersError, RuntimeError, AssertionError)) as failure:
        run()
    record_property("told", f"{type(failure.value).__name__}: {str(failure.value)[:200]}")
    assert isinstance(failure.value, ReplayDiffersError), failure.value

"""What ranks compute together; here one rank alone, in a child that torch.distributed may change.

Several ranks are in ``whole/test_tensor_parallel.py``, as the engine starts them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from sample_engine import LLM, SamplingParams
from sample_engine.errors import ConfigError, RankLostError
from sample_engine.parallel.place import RankPlace
from sample_engine.process.memory_file import MemoryFile
from tests.engine.support.engine import PROMPTS, plain_tokens

RunForked = Callable[..., Any]


def use_it() -> dict[str, Any]:
    """What a group of one rank does."""
    from sample_engine.parallel.group import RankGroup

    file = MemoryFile()
    os.environ.pop("GLOO_SOCKET_IFNAME", None)
    group = RankGroup(RankPlace(0, 1, file.path()), torch.device("cpu"))
    numbers = torch.tensor([[1.0, 2.0]])
    found = {
        "sum": group.all_reduce(numbers.clone()).tolist(),
        "in place": group.all_reduce(numbers) is numbers,
        "all": group.all_gather(numbers).tolist(),
        "least": group.least(7),
        "multicast": os.environ["NCCL_NVLS_ENABLE"],
        "interface": os.environ.get("GLOO_SOCKET_IFNAME"),
        "met in memory": os.fstat(file.fileno()).st_size > 0,
    }
    group.close()
    return found


def test_a_rank_sums_and_joins_and_stays_on_this_host(run_forked: RunForked) -> None:
    found = run_forked(use_it)
    assert found == {
        "sum": [[1.0, 2.0]],
        "in place": True,
        "all": [[[1.0, 2.0]]],
        "least": 7,
        "multicast": "0",
        "interface": "lo",
        "met in memory": True,
    }


def use_what_fails() -> list[str]:
    """The words of errors of the transport."""
    from unittest import mock

    import torch.distributed as dist

    from sample_engine.parallel import group as module

    file = MemoryFile()
    group = module.RankGroup(RankPlace(0, 1, file.path()), torch.device("cpu"))
    found = []
    broken = mock.Mock(side_effect=RuntimeError("Connection closed by peer"))
    with mock.patch.object(torch.ops._c10d_functional, "all_reduce_", broken):
        try:
            group.all_reduce(torch.zeros(1))
        except RankLostError as error:
            found.append(str(error))
    with mock.patch.object(dist, "all_gather", broken):
        try:
            group.all_gather(torch.zeros(1))
        except RankLostError as error:
            found.append(str(error))
    with mock.patch.object(dist, "destroy_process_group", broken):
        group.close()
    with mock.patch.object(dist, "is_gloo_available", return_value=False):
        try:
            module.RankGroup(RankPlace(1, 2, file.path()), torch.device("cpu"))
        except ConfigError as error:
            found.append(str(error))
    return found


def test_an_error_of_the_transport_is_a_lost_rank(run_forked: RunForked) -> None:
    *lost, missing = run_forked(use_what_fails)
    assert lost == ["Rank 0 of 1 cannot reach the others: Connection closed by peer"] * 2
    assert missing.startswith("tensor_parallel_size=2 needs gloo, and torch ")


def choose_how_to_sum() -> dict[str, str]:
    """How a rank sums, by what it finds. It is told of a GPU; what it shares lies on the CPU."""
    from unittest import mock

    from sample_engine.parallel import group as module

    file = MemoryFile()
    group = module.RankGroup(RankPlace(0, 1, file.path()), torch.device("cpu"))
    group.share_sums(4, 8, torch.float32)
    found = {"on a CPU": group.way}
    sums = mock.Mock(most_tokens=4)
    sums.of.side_effect = lambda term, residual, norm: (term + 1, term + 2)
    on_gpu = mock.Mock(type="cuda")

    def chosen(**changed: Any) -> str:
        group._peers = None
        sums.agree_with.return_value = changed.pop("agree", True)
        made = changed.pop("made", mock.Mock(return_value=sums))
        why = changed.pop("why", None)
        with (
            mock.patch.object(group, "_device", on_gpu),
            mock.patch.object(group, "least", lambda number: int(number)),
            mock.patch.object(module, "why_not_shared", return_value=why),
            mock.patch.object(group, "_peer_sums", made),
        ):
            group.share_sums(4, 8, torch.float32, **changed)
        return group.way

    found["not wished"] = chosen(wished=False)
    found["out of reach"] = chosen(why="GPU 0 cannot reach the memory of GPU 1")
    found["refused"] = chosen(made=mock.Mock(side_effect=RuntimeError("no rights\nC++ stack")))
    found["wrong"] = chosen(agree=False)
    numbers = torch.ones(2, 8)
    assert group.sum_and_norm(numbers, None, None) is None
    found["shared"] = chosen()
    assert group.all_reduce(numbers).tolist() == (numbers + 1).tolist()
    sums.takes.return_value = False
    assert group.sum_and_norm(numbers, numbers, None) is None
    sums.takes.assert_called_with(numbers, numbers)
    group.close()
    return found


def test_how_sums_are_computed_is_chosen_once_and_told(run_forked: RunForked) -> None:
    assert run_forked(choose_how_to_sum) == {
        "on a CPU": "gloo",
        "not wished": "nccl: disable_custom_all_reduce=True",
        "out of reach": "nccl: GPU 0 cannot reach the memory of GPU 1",
        "refused": "nccl: RuntimeError: no rights",
        "wrong": "nccl: sums over peer memory came to something else",
        "shared": "peer memory up to 4 tokens, else nccl",
    }


def test_fresh_interpreters_meet_and_this_process_stays_untouched(
    folder: str, cuda_state: Callable[[], Any]
) -> None:
    # Forks are in whole/test_tensor_parallel.py.
    prompt, count = PROMPTS["own-8"], 6
    given = {"prompt_token_ids": prompt}
    with LLM(
        model=folder, device="cpu", num_blocks=40, tensor_parallel_size=2, worker_method="spawn"
    ) as llm:
        assert len(set(llm.info()["rank_pids"])) == 2
        (output,) = llm.generate(given, SamplingParams(max_tokens=count), use_tqdm=False)
    assert list(output.token_ids) == plain_tokens(folder, prompt, count)
    assert cuda_state().safe_to_fork

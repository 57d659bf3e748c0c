"""Streams, random numbers, work on the host, cold libraries: what happens around the capture."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.specimens.graph_programs.program import (
    ONLY_CUDA,
    Case,
    Place,
    Verdict,
    both,
    programs_in,
    refused,
    right,
    wrong,
)

__all__ = ["PROGRAMS"]

WRONG, REFUSED = Verdict.WRONG, Verdict.REFUSED


@both(
    REFUSED,
    "a branch of work on a side stream is not joined",
    corpus="vllm-project/vllm#57785",
    backends=ONLY_CUDA,
)
def side_stream(place: Place, fixed: bool) -> Case:
    x, side = place.randn(4, 8), torch.cuda.Stream()

    def fn(x: Tensor) -> Tensor:
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            other = x.sin()
        if fixed:
            main.wait_stream(side)
        return x * 2 + (other if fixed else 0)

    return Case(fn, [x], [place.other(x)])


@both(
    WRONG,
    "work is put on the default stream while another is captured: it runs at once",
    corpus="vllm-project/vllm#43160",
    backends=ONLY_CUDA,
)
def default_stream(place: Place, fixed: bool) -> Case:
    x = place.randn(4, 8)

    def fn(x: Tensor) -> Tensor:
        if fixed:
            return x * 2
        with torch.cuda.stream(torch.cuda.default_stream()):
            return x * 2

    return Case(fn, [x], [place.other(x)])


@both(
    REFUSED,
    "a workspace of the warm-up's stream is made within the capture, and waited for",
    corpus="vllm-project/vllm#53818",
    backends=ONLY_CUDA,
    documented={"cuda": "the check warms up on the stream that it captures"},
)
def workspace_of_a_stream(place: Place, fixed: bool) -> Case:
    x, kept = place.randn(4, 8), {}

    def fn(x: Tensor) -> Tensor:
        key = 0 if fixed else torch.cuda.current_stream().cuda_stream
        if key not in kept:
            kept[key] = torch.zeros(4, 8, device=x.device)
            torch.cuda.current_stream().synchronize()
        return kept[key] + x

    return Case(fn, [x], [place.other(x)])


@both(
    REFUSED,
    "an event of work before the capture is waited for on the host",
    corpus="NVIDIA/TensorRT-LLM#12462",
    backends=ONLY_CUDA,
)
def event_of_the_warmup(place: Place, fixed: bool) -> Case:
    x, sent = place.randn(4, 8), torch.cuda.Event()

    def fn(x: Tensor) -> Tensor:
        if not fixed:
            sent.record()
            sent.synchronize()
        return x * 2

    return Case(fn, [x], [place.other(x)])


@both(REFUSED, "the end of a run waits for the stream", corpus="microsoft/onnxruntime#15002")
def run_ends_with_a_wait(place: Place, fixed: bool) -> Case:
    x = place.randn(4, 8)

    def fn(x: Tensor) -> Tensor:
        made = x @ x.T
        if not fixed:
            torch.cuda.synchronize()
        return made

    return Case(fn, [x], [place.other(x)])


@wrong(
    "part of the work lands on the CPU of the host, once",
    corpus="pytorch/pytorch#87794",
    backends=ONLY_CUDA,
)
def work_on_the_host(place: Place) -> Case:
    x, table = place.randn(4, 8), torch.ones(1)

    def fn(x: Tensor) -> Tensor:
        table.add_(1)
        return x * table.reshape(())

    return Case(fn, [x], [place.other(x)] * 2)


@right("all of the work lies on the device", corpus="pytorch/pytorch#87794")
def work_on_the_device(place: Place) -> Case:
    x, table = place.randn(4, 8), place.zeros(1)

    def fn(x: Tensor) -> Tensor:
        table.add_(1)
        return x * table

    return Case(fn, [x], [place.other(x)] * 2)


@both(
    WRONG,
    "the graph is replayed on another stream than the one on which its inputs change",
    corpus="openmm/openmm-torch#122",
    backends=ONLY_CUDA,
    documented={"cuda": "a race: the check may wait where it matters"},
)
def replay_on_another_stream(place: Place, fixed: bool) -> Case:
    x, other = place.randn(256, 256), torch.cuda.Stream()
    graph = place.graph(lambda: x.sum(0))
    x.clone().fill_(1.0)  # loads the kernel, which would wait for the device

    def slow() -> None:
        value = float(place.lengths(1, 2, 1000)[0])
        torch.cuda._sleep(200_000_000)
        x.fill_(value)

    def replay() -> Any:
        main = torch.cuda.current_stream()
        if fixed:
            other.wait_stream(main)
        with torch.cuda.stream(other):
            result = graph()
        main.wait_stream(other)
        return result

    return Case(lambda x: x.sum(0), [x], [slow], options={"replay": replay})


@both(REFUSED, "an assignment by a mask takes values of the device", corpus="pytorch/pytorch#78549")
def mask_of_statistics(place: Place, fixed: bool) -> Case:
    x, counts = place.randn(4, 8), place.tensor([3.0, 0.0, 2.0, 0.0])

    def fn(x: Tensor, counts: Tensor) -> Tensor:
        if fixed:
            return torch.where(counts[:, None] > 0, x, 0.0).sum(0)
        return x[counts > 0].sum(0)

    return Case(fn, [x, counts], [lambda: counts.copy_(counts.roll(1)), place.other(x)])


@both(
    REFUSED,
    "the size of a context is asked of the device within the launch",
    corpus="triton-lang/triton#685",
)
def asked_within_the_launch(place: Place, fixed: bool) -> Case:
    x, size = place.randn(4, 8), place.tensor(4)
    known = int(size)

    def fn(x: Tensor) -> Tensor:
        rows = known if fixed else int(size)
        return x[:rows] * 2

    return Case(fn, [x], [place.other(x)])


@both(
    REFUSED,
    "a length is read for the attention of a picture",
    corpus="vllm-project/vllm-ascend#16736",
)
def length_is_read(place: Place, fixed: bool) -> Case:
    x, lens = place.randn(8, 8), place.tensor([3, 5])

    def fn(x: Tensor, lens: Tensor) -> Tensor:
        if fixed:
            first = torch.arange(8, device=x.device) < lens[0]
            return torch.stack([x[first.long()].sum(0), x.sum(0)])
        return torch.stack([part.sum(0) for part in x.split(lens.tolist())])

    return Case(fn, [x, lens], [lambda: lens.copy_(lens.flip(0)), place.other(x)])


@both(
    REFUSED,
    "a kernel is tuned at its first call, which is in the capture",
    corpus="triton-lang/triton#10596",
)
def tuned_in_the_capture(place: Place, fixed: bool) -> Case:
    x, tuned = place.randn(4, 8), {}
    calls = [0]

    def fn(x: Tensor) -> Tensor:
        calls[0] += 1
        key = "any" if fixed else calls[0]  # a key that the warm-up does not meet
        if key not in tuned:
            times = []
            for size in (2, 4):
                made = torch.stack(x.chunk(size)).sum(0)
                times.append(float(made.sum()))
            tuned[key] = 2 if times[0] == times[1] else 4
        return torch.stack(x.chunk(tuned[key])).sum(0)

    return Case(fn, [x], [place.other(x)])


@both(
    REFUSED,
    "an object that is dropped in the capture waits for the device",
    corpus="sgl-project/sglang#35427",
)
def dropped_in_the_capture(place: Place, fixed: bool) -> Case:
    x, kept, made = place.randn(4, 8), [], place.randn(1)

    class Kernel:
        def unload(self) -> None:
            made.item()

    def fn(x: Tensor) -> Tensor:
        old = Kernel()
        kept.append(old)
        if not fixed:
            old.unload()
        return x * 2

    return Case(fn, [x], [place.other(x)])


@right("the first product of matrices happens within the capture", corpus="pytorch/pytorch#99397")
def product_after_a_warmup(place: Place) -> Case:
    x, w = place.randn(4, 8), place.randn(8, 8)
    return Case(lambda x, w: x @ w, [x, w], [place.other(x), place.other(w)])


@both(WRONG, "a seed of Python makes the numbers", corpus="pytorch/pytorch#84967")
def seed_of_python(place: Place, fixed: bool) -> Case:
    x, seeds = place.randn(4, 8), [1]

    def fn(x: Tensor) -> Tensor:
        if fixed:
            return x + torch.rand_like(x)
        seeds[0] += 1
        steps = torch.arange(32, device=x.device).view(4, 8)
        return x + ((steps * 7919 + seeds[0] * 104729) % 1000) / 1000.0

    return Case(fn, [x], [place.other(x)] * 2, options={"rng": True})


@both(
    REFUSED,
    "numbers come from a generator that the graph does not know",
    corpus="pytorch/pytorch#172390",
)
def generator_of_its_own(place: Place, fixed: bool) -> Case:
    x, own = place.randn(4, 8), torch.Generator(device=place.device).manual_seed(3)

    def fn(x: Tensor) -> Tensor:
        if fixed:
            return x + torch.rand(4, 8, device=x.device)
        return x + torch.rand(4, 8, device=x.device, generator=own)

    return Case(fn, [x], [place.other(x)], options={"rng": True})


@both(WRONG, "noise is drawn once, and each step says that it draws")
def noise_is_kept(place: Place, fixed: bool) -> Case:
    x, noise = place.randn(4, 8), place.randn(4, 8)

    def fn(x: Tensor) -> Tensor:
        return x + (torch.rand_like(x) if fixed else noise)

    return Case(fn, [x], [place.other(x)], options={"rng": True})


@refused("a graph is captured within the capture", corpus="pytorch/pytorch#172390")
def capture_within_the_capture(place: Place) -> Case:
    x = place.randn(4, 8)
    within = [False]

    def fn(x: Tensor) -> Tensor:
        if within[0]:
            place.graph_as_it_is(lambda: x * 3)
        within[0] = True
        return x * 2

    return Case(fn, [x], [place.other(x)])


PROGRAMS = programs_in(vars())

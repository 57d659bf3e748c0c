"""Starts training processes from a notebook."""

import multiprocessing

from accelerate.utils.bnb import quantized_size


def notebook_launcher(function, arguments: tuple = (), num_processes: int = 2) -> list[int]:
    """Exit statuses of the processes."""
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=function, args=(rank, *arguments)) for rank in range(num_processes)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    return [process.exitcode for process in processes]


__all__ = ["notebook_launcher", "quantized_size"]

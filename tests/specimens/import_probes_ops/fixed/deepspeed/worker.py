"""Runs a function in a forked worker."""

import multiprocessing


def _call(connection, function, arguments) -> None:
    try:
        connection.send((True, function(*arguments)))
    except Exception as error:
        connection.send((False, f"{type(error).__name__}: {error}"))


def run_in_worker(function, *arguments):
    """What ``function`` returned in a forked worker."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(sender, function, arguments))
    process.start()
    if not receiver.poll(30):
        process.kill()
        raise TimeoutError("the worker sent nothing within 30 s")
    good, value = receiver.recv()
    process.join(30)
    if not good:
        raise RuntimeError(f"worker failed: {value}")
    return value

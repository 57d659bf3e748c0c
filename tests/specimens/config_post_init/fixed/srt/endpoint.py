"""Starts a server to benchmark."""

import multiprocessing

from srt.server import launch_server
from srt.server_args import ServerArgs


def launch_server_process(server_args: ServerArgs) -> str:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=launch_server, args=(server_args, sender))
    process.start()
    if not receiver.poll(60):
        raise TimeoutError("the server sent nothing within 60 s")
    url = receiver.recv()
    process.join(30)
    return url

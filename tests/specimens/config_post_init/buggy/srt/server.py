"""The server process."""

import multiprocessing

from srt.server_args import ServerArgs


def launch_server(server_args: ServerArgs, ready) -> None:
    multiprocessing.set_start_method("spawn", force=True)  # for the schedulers it starts
    ready.send(f"http://localhost/{server_args.model_path}")

"""A pre-forking server: imports the application, then forks the workers."""

import os

import clip


def serve(requests: list[str]) -> list[int]:
    """Exit statuses of one worker per request; 0 is a good answer."""
    statuses = []
    for text in requests:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if len(clip.load("ViT-B/32").encode(text)) == len(text) else 1)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    return statuses

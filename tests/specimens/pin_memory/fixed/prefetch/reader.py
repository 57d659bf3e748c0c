"""Reads shards in a forked worker."""

import multiprocessing


def _read(connection, shard: int) -> None:
    connection.send([shard, shard + 1])


def read_shard(shard: int) -> list[int]:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_read, args=(sender, shard))
    process.start()
    if not receiver.poll(30):
        raise TimeoutError("the reader sent nothing within 30 s")
    rows = receiver.recv()
    process.join(30)
    return rows

"""What a sharded checkpoint says about itself."""


def merge(shards: list[dict]) -> dict:
    merged = {}
    for shard in shards:
        for name, rows in shard.items():
            merged[name] = merged.get(name, 0) + rows
    return merged

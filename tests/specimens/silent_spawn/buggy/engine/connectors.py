"""Connectors that move KV blocks; anybody may register one."""

REGISTRY: dict[str, str] = {"shared_storage": "engine.connectors"}


def get(name: str) -> str:
    if name not in REGISTRY:
        raise ValueError(f"Unsupported connector type: {name}")
    return REGISTRY[name]

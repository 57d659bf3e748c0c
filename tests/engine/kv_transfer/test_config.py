"""What may be said of shared KV blocks, and what is refused by name."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from sample_engine import LLM, ConfigError, EngineConfig, KVTransferConfig

WRONG: list[tuple[Any, list[str]]] = [
    ({"kv_rolle": "kv_both"}, ["no setting 'kv_rolle'. Did you mean 'kv_role'?"]),
    ({"kv_role": "producer"}, ["kv_role='producer' is not one of 'kv_producer', ", "Did you mean"]),
    ({"kv_connector": "LMCacheConnectorV1"}, ["LMCache is not part of this engine"]),
    ({"kv_connector": ["x"]}, ["kv_connector=['x'] is not one of 'SharedMemoryConnector'"]),
    ({"kv_load_failure_policy": "retry"}, ["'retry' is not one of 'recompute', 'fail'"]),
    ({"kv_connector_extra_config": []}, ["kv_connector_extra_config=[] must be a dict"]),
    (
        {"kv_connector_extra_config": {"nam": "x", "max_bytes": 0, "directory": "here"}},
        [
            "has 'nam', which",
            "Did you mean 'name'?",
            "max_bytes=0 must be",
            "directory='here' must",
        ],
    ),
    ({"kv_connector_extra_config": {"name": "a/b"}}, ["name='a/b' must be 1 to 64 letters"]),
    (
        {
            "kv_connector": "RedisConnector",
            "kv_connector_extra_config": {
                "url": "http://x",
                "timeout_seconds": 0,
                "ttl_seconds": 1.5,
            },
        },
        ["url='http://x' must be a URL", "timeout_seconds=0 must be", "ttl_seconds=1.5 must be"],
    ),
    ('{"kv_role": "kv_both"}', ["must be a dict", "json.loads makes a dict of it"]),
]


@pytest.mark.parametrize(("given", "words"), WRONG)
def test_what_is_wrong_is_refused_by_name_before_anything_is_started(
    given: Any, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        LLM(device="cpu", kv_transfer_config=given)
    for each in words:
        assert each in str(caught.value)


def test_a_mapping_and_a_configuration_are_the_same() -> None:
    given = {"kv_connector": "RedisConnector", "kv_role": "kv_consumer", "kv_rank": None}
    with pytest.raises(ConfigError, match="no setting 'kv_rank'"):
        KVTransferConfig.of(given)
    del given["kv_rank"]
    made = KVTransferConfig.of({**given, "kv_load_failure_policy": None})
    assert made == KVTransferConfig(kv_connector="RedisConnector", kv_role="kv_consumer")
    assert KVTransferConfig.of(made) is made
    assert EngineConfig(kv_transfer_config=given).kv_transfer == made
    assert EngineConfig().kv_transfer is None
    assert pickle.loads(pickle.dumps(made)) == made


def test_roles_say_who_stores_and_who_fetches() -> None:
    found = {
        role: (config.stores, config.fetches)
        for role in ("kv_producer", "kv_consumer", "kv_both")
        for config in [KVTransferConfig(kv_role=role)]
    }
    assert found == {
        "kv_producer": (True, False),
        "kv_consumer": (False, True),
        "kv_both": (True, True),
    }


def test_extra_settings_have_defaults() -> None:
    made = KVTransferConfig(kv_connector_extra_config={"name": "mine"})
    assert made.extra == {"name": "mine", "max_bytes": 1 << 30, "directory": "/dev/shm"}


def test_without_prefix_caching_there_are_no_hashes_to_share_by() -> None:
    with pytest.raises(ConfigError, match="kv_transfer_config needs enable_prefix_caching=True"):
        EngineConfig(kv_transfer_config={}, enable_prefix_caching=False)

"""Importing the engine, any module of it, initializes nothing: the plugin's own audit says so."""

from __future__ import annotations

from pytest_cudafork import ImportVerdict, audit


def test_no_module_of_the_engine_touches_cuda_when_it_is_imported() -> None:
    records = audit("sample_engine")
    names = {record.module for record in records}
    assert {"sample_engine.llm", "sample_engine.attention.triton_backend"} <= names
    wrong = {
        record.module: (record.verdict.value, record.where, record.reason)
        for record in records
        if record.verdict is not ImportVerdict.CLEAN
    }
    assert not wrong

"""Finds the quantization method of a model by asking each model's config."""

import importlib

MODELS_WITH_THEIR_OWN_METHOD = ("deepseek_v4",)


def resolve_quant_method(quantization: str) -> str:
    for model in MODELS_WITH_THEIR_OWN_METHOD:
        config = importlib.import_module(f"engine.models.{model}.quant_config")
        if config.handles(quantization):
            return model
    return "generic"

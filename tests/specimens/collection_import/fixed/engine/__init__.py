"""Stands for vllm-project/vllm#44258: collecting any test imports a helper, whose top-level import reaches
a capability probe, but only in images where a communication library is installed."""

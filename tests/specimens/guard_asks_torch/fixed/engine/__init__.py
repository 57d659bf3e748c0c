"""Stands for vllm-project/vllm#32611: the guard that should force spawn asks torch alone, and cannot
see a driver that somebody else initialized."""

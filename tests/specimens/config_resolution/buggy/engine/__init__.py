"""Stands for vllm-project/vllm#56239: nothing is imported too early, but resolving the configuration asks
the device whether a fusion pays, before the workers exist."""

"""Stands for vllm-project/vllm#50638: each test runs in a child of a poisoned pytest process, where
torch.cuda.is_initialized() is False, so the guard lets it fork the engine core."""

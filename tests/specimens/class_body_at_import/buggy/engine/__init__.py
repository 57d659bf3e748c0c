"""Stands for the same class body of vLLM's flash attention backend, met by whoever imports the module
in a process that will fork later; today's vLLM answers the question from NVML."""

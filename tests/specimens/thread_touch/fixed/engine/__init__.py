"""A variation on vllm-project/vllm#9469: the part of the host program that uses CUDA is a thread, so the
line that initializes is on another stack than the line that forks."""

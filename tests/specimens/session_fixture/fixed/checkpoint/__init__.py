"""Stands for deepspeedai/DeepSpeed#7937: tests of metadata alone run in forked processes, and a fixture
asks for the current device before them."""

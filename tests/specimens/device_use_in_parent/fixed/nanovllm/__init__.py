"""Stands for GeeeekExplorer/nano-vllm#22: rank 0 takes its device in the parent, and the default start
method forks the other ranks from it."""

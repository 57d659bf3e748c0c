"""Stands for vllm-project/vllm#3557 (and EleutherAI/gpt-neox#1132): a conftest that touches CUDA breaks
every test that runs in a forked process, whatever the test does."""

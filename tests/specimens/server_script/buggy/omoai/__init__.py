"""Stands for the API server of OMOAI (the cause is that of vllm-project/vllm#9469): it has used CUDA
and starts a script, which is clean by exec, but touches CUDA itself and then forks its workers."""

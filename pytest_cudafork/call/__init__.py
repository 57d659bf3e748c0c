"""Calling a function in a process of its own: run_forked, run_spawned, run_forkserver."""

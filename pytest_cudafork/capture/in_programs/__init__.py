"""Captures of programs that know no pytest: ``python -m pytest_cudafork run --captures``."""

"""Tests of pytest_cudafork.doctor.child."""

"""Tests of what is asked of a GPU before anybody may touch one."""

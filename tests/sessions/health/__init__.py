"""Whole sessions that look after the health of the GPU; the phantom driver is made sick."""

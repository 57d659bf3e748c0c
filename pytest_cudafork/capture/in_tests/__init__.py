"""Checking the captures that tests make: from the option and the marker to reports and summary.

Nothing is imported here, and the modules below import torch only where a test has imported it.
"""

"""The import audit: which modules of a package initialize CUDA when they are imported.

Nothing here knows what a test of the user's does: no module is imported in the pytest process.
"""

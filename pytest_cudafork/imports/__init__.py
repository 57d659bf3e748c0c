"""The import audit: which modules of a package initialize CUDA when they are imported."""

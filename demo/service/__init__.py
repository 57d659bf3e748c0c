"""An HTTP service that has used CUDA and starts a script for each request, as in a bug report."""

"""Health of the GPU after each test: broken contexts, captures left behind, memory kept."""

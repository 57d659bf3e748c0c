"""An HTTP server that speaks as OpenAI's does: ``python -m sample_engine serve``."""

"""The plugin at work on the machine at hand; ``python demo/run.py`` shows it, no GPU needed."""

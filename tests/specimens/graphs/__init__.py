"""Graph mechanisms: each module is one bug that a captured graph shows, in a buggy and a fixed form.

They know the public names of the plugin alone.
"""

"""Names of other packages that those packages do not promise to keep: one module for each package.

The rest of the plugin calls the functions here and uses no such name itself, so a release that
drops one is answered in one place. ``tests/unit/compat`` has a test for each name.
"""

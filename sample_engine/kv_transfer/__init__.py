"""Sharing KV blocks between engines: where they are kept, and how they get there and back.

A producer stores each block that is full, under a key made of its content's hash; a consumer whose
text begins alike fetches it instead of computing it. ``connector`` is what the engine core talks
to, ``store`` the interface of what keeps blocks.
"""

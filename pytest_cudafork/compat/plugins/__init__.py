"""Other plugins of pytest, each of whose private names is used through one module here."""

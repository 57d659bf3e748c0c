"""A file that is open from the import on."""

FILE = open("/dev/null", "w", encoding="utf-8")  # noqa: SIM115

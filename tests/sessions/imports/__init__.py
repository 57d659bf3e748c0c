"""Sessions and programs that audit imports."""

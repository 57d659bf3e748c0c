"""One kernel per device."""

"""The fixture child_patch: patches that hold in this process and in all that it starts."""

"""The native libraries, each test in a process of its own."""

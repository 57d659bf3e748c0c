"""Stands for SYSTRAN/faster-whisper#983: the server asks torch whether there is a GPU and forks a process
per request, where a library that is not torch finds the driver unusable."""

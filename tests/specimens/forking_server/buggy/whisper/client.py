"""Asks the service."""

import socket
import threading


def ask(server, audio: bytes) -> str:
    """Serve one request, and return what its client got."""
    answers = []

    def request() -> None:
        with socket.create_connection(server.server_address, timeout=30) as connection:
            connection.sendall(audio + b"\n")
            answers.append(connection.makefile().readline().strip())

    client = threading.Thread(target=request)
    client.start()
    server.timeout = 30
    server.handle_request()
    client.join(30)
    server.server_close()
    return answers[0]

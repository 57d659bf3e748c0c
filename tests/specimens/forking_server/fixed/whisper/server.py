"""The service: one forked process per request."""

import socketserver

from whisper import nvml
from whisper.model import WhisperModel


class Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        audio = self.rfile.readline().strip()
        try:
            answer = WhisperModel(self.server.device).transcribe(audio)
        except RuntimeError as error:
            answer = f"error: {error}"
        self.wfile.write(answer.encode() + b"\n")


class Server(socketserver.ForkingMixIn, socketserver.TCPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.device = default_device()


def default_device() -> str:
    return "cuda" if nvml.device_count() > 0 else "cpu"

"""One request through the service."""

from whisper.client import ask
from whisper.server import Server


def test_speech_comes_back_as_text():
    assert ask(Server(), b"good morning") == "Good Morning"

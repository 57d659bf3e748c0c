"""One request through the API."""

from omoai.api.services import run_postprocess_script, transcribe


def test_a_transcript_is_punctuated():
    assert run_postprocess_script(transcribe(b"hello there")) == "Hello there."

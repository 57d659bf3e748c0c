"""What the API offers: transcription in this process, post-processing in a script."""

import ctypes
import json

from omoai.api.scripts.postprocess_wrapper import run_postprocess


def transcribe(audio: bytes) -> str:
    """Speech to text; on the GPU if there is one."""
    try:
        ctypes.CDLL("libcuda.so.1").cuInit(0)
    except OSError:
        pass
    return audio.decode()


def run_postprocess_script(transcript: str) -> str:
    return json.loads(run_postprocess(transcript))["text"]

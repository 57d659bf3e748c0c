"""Speech to text on CTranslate2, which talks to the driver itself."""

import ctypes


class WhisperModel:
    def __init__(self, device: str) -> None:
        self.device = device
        try:
            status = ctypes.CDLL("libcuda.so.1").cuInit(0)
        except OSError:
            status = 100
        if status not in (0, 100):
            raise RuntimeError(f"CUDA failed with error initialization error ({status})")

    def transcribe(self, audio: bytes) -> str:
        return audio.decode().title()

"""What the server is started with."""

import dataclasses


def get_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"  # touch: culprit


@dataclasses.dataclass
class ServerArgs:
    model_path: str
    device: str | None = None

    def __post_init__(self) -> None:
        if self.device is None:
            self.device = get_device()

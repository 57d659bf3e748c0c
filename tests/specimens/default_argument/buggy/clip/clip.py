"""Loads models."""

import torch


class Model:
    def __init__(self, name: str, device: str) -> None:
        self.name, self.device = name, device

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


def load(name: str, device: str = "cuda" if torch.cuda.is_available() else "cpu") -> Model:  # touch: culprit
    return Model(name, device)

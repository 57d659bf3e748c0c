"""The server answers."""

from server import serve


def test_each_worker_encodes_its_text():
    assert serve(["a cat", "a dog"]) == [0, 0]

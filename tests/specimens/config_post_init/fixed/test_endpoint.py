"""The benchmark finds its server."""

from srt.endpoint import launch_server_process
from srt.server_args import ServerArgs


def test_server_is_reached():
    assert launch_server_process(ServerArgs("llama")) == "http://localhost/llama"

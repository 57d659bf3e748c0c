import subprocess
import unittest

from pytest_cudafork import gpu


class TestServer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        gpu.wait_idle(spare="2GiB")

    def setUp(self):
        self.server = subprocess.Popen(["sleep", "60"])

    def tearDown(self):
        self.server.terminate()
        gpu.wait_release(self.server.pid)
        self.server.wait()

    def test_it_runs(self):
        assert self.server.poll() is None

"""From a recorded stack to sentences: touches, forks, advice."""

"""capture_pair: warm-up and capture of one forward, and the checks of the pair."""

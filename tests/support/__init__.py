"""What the tests of more than one folder use."""

"""What the user reads: the lines before the first test, and the terminal's last section."""

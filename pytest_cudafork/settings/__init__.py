"""What the user asked for: options, markers and the environment, read into frozen values."""

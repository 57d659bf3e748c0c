"""What processes say to each other: frames, the messages in them, and how warnings travel."""

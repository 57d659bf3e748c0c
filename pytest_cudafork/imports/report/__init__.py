"""What an audit found, in words: findings, the summary, the story of one module."""

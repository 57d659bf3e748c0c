"""What the user reads: header, terminal section, stories of touches and forks.

Knows nothing of how the facts were gathered.
"""

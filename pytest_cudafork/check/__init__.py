"""What a session makes of touches and forks: guard, findings, verdicts, and the watch."""

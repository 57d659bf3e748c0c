"""What every witness uses: ledger, stacks, hooks, undo."""

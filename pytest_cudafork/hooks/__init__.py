"""The hooks that other plugins may implement: what they are, and how they are called."""

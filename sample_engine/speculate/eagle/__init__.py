"""Drafts by a head that reads the hidden states of the model, in the manner of EAGLE-3."""

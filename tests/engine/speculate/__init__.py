"""Tests of speculators and of the verification of drafts."""

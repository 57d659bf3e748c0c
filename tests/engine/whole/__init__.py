"""Tests of whole engines: tokens come out the same, whatever is switched on."""

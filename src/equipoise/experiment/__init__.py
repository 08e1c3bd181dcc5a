"""Experiments: what the papers measured, run by one command each."""

"""Data sets by name: where their files are found, and how each is read."""

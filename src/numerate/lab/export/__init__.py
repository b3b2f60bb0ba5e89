"""Rows with soft targets, in the files that other frameworks read."""

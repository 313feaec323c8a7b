"""Tests and linters of this repository."""

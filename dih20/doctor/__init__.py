"""A registry of checks; other packages add theirs in a module named checks.py."""

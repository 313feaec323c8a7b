"""Package indexes and mirrors: which ones are in force, and what they list."""

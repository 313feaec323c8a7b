"""Build the same inputs twice and compare the bits."""

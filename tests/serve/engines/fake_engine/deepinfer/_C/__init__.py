"""What upstream compiles."""

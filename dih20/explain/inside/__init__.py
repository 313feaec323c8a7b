"""What runs inside a container: standard library only, for whatever python is there."""

"""What runs inside the image's containers: standard library only, for whatever python is there."""

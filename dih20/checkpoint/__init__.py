"""`inv checkpoint`: look into a checkpoint in the released format."""

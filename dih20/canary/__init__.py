"""`inv canary`: ask the canary checkpoint, take its parts away, retrain it, complete it."""

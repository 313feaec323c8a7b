"""di.lock.yaml: every version and hash, written by one writer."""

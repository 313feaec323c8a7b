"""`inv verify`: what runs on a host against the lock and the tree here, a line for each difference."""

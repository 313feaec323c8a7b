"""Facts, plan and apply for one container on one host."""

"""CI: one table of jobs, the workflow that is rendered from it, and the image that jobs can run in."""

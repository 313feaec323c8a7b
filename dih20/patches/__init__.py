"""The patchset over the locked upstream, and users' unified diffs."""

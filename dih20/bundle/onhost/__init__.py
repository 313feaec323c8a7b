"""The host's side of a bundle: the standard library, dih20.errors, and nothing else of ours."""

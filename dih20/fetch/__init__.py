"""The only step that downloads: locked inputs, by sha256, into the cache."""

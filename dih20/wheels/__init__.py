"""Vendor wheels: recipe, identity, build in a container, inspection, store."""

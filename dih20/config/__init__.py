"""Annotated YAML files under configs/, read once at the edge into frozen models."""

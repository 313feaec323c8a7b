"""Engines behind one small interface, each rank in a process of its own."""

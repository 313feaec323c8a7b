"""The parts of the engine that the adapter touches, in plain Python: counts up from the prompt."""

__version__ = "0.1.0"

"""Build, patch, ship and check DeepInfer on Hopper: one subpackage per job, in pipeline order."""

__version__ = "0.1.0"

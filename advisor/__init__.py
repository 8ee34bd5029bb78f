"""Topology-aware strategy advisor and executor for PyTorch training."""

__version__ = "0.1.0"

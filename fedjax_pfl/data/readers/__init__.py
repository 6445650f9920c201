"""Readers of file formats; every defect of a file becomes one sentence."""

__all__ = []

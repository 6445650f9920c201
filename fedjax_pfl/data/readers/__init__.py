"""Readers of file formats; every defect of a file is answered by one sentence."""

__all__ = []

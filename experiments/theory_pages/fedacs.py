"""x."""

PARTS = ()
__all__ = ["PARTS"]

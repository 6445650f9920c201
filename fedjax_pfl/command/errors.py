"""Error that ends a command before its work is done."""

__all__ = ["StoppedError"]


class StoppedError(Exception):
    """Early end of a command, with a sentence and an exit status."""

    def __init__(self, sentence: str, status: int):
        super().__init__(sentence)
        self.status = status

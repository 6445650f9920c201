"""End of a command before its work is done."""

__all__ = ["StoppedError"]


class StoppedError(Exception):
    """A command ends before its work is done, with a sentence and a status."""

    def __init__(self, sentence: str, status: int):
        super().__init__(sentence)
        self.status = status

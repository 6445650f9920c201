"""A callback that breaks a training off."""

import fedjax_pfl as fp

__all__ = ["Stop"]


class Stop(fp.Callback):
    """Breaks a training off after the evaluation of a round."""

    def __init__(self, at):
        self.at = at

    def evaluated(self, evaluation):
        if evaluation.round == self.at and not evaluation.is_restored:
            raise InterruptedError

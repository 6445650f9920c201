"""An equal comparison: every method tuned with the same effort, then trained again."""

from typing import TYPE_CHECKING

from fedjax_pfl.core import lazy

if TYPE_CHECKING:
    from fedjax_pfl.benchmark.page import write
    from fedjax_pfl.benchmark.tables import Tables, collect
    from fedjax_pfl.benchmark.tasks import Task
    from fedjax_pfl.benchmark.training import run
else:
    __getattr__, __dir__ = lazy.attach(__name__)

__all__ = ["Tables", "Task", "collect", "run", "write"]

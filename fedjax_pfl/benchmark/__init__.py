"""An equal comparison: every method tuned with the same effort, then trained again.

`tasks` defines comparisons; `training` does the work of one data set, method by method,
with the `choice` of their settings; `tables` reads its files as rows; `ranking` finds
groups of similar methods, `differences` their distances from a fine-tuned FedAvg, and
`kinds` their types; `findings`, `pictures`, the tables of `data_set` and `costs`,
`reading` and `page` present the results.
"""

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

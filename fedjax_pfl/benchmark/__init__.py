"""An equal comparison: every method tuned with the same effort, then trained anew.

`tasks` says what is compared; `training` does the work of one data set, method by
method, with the `choice` of their settings; `tables` reads what it left as rows;
`ranking` says which of them can be told apart, `differences` how far they are from a
fine-tuned FedAvg, and `kinds` what they are; `findings`, `pictures`, the tables of
`data_set` and `costs`, `reading` and `page` show it.
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

"""Tables of timed runs, from the files that the bench has written."""

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from experiments.bench import report


class Benchmark(SphinxDirective):
    """`{benchmark} FILE`: times of a run beside PyTorch's loop, and its machine."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Makes the table where the directive stands."""
        file = Path(self.env.relfn2path(self.arguments[0])[1])
        self.env.note_dependency(str(file))
        run = report.read(file)
        lines = ["| one round of | ours, ms | PyTorch loop, ms | ratio |"]
        lines += ["|---|---:|---:|---:|", *rows(run), ""]
        machine = run["machine"]
        versions = machine["versions"]
        lines.append(
            f"{machine['threads']} of the {machine['cpus']} cores of an"
            f" {machine['processor']}, JAX {versions['jax']}, PyTorch"
            f" {versions['torch']}, {machine['started'][:10]}. A ratio above 1 means"
            " that ours is faster."
        )
        return self.parse_text_to_nodes("\n".join(lines))


def rows(run: dict[str, Any]) -> list[str]:
    """Returns a Markdown row per workload that PyTorch's loop has run as well."""
    table = []
    for workload in run["workloads"]:
        times = [
            1000 * workload["contenders"][name]["seconds_per_round"]["wall"]
            for name in ("ours", "torch")
            if name in workload["contenders"]
        ]
        if len(times) == 2:
            ours, theirs = times
            numbers = f"{ours:,.3g} | {theirs:,.3g} | {theirs / ours:.2f}"
            table.append(f"| {workload['title']} | {numbers} |")
    return table


def setup(app: Sphinx) -> dict[str, bool]:
    """Adds the directive."""
    app.add_directive("benchmark", Benchmark)
    return {"parallel_read_safe": True}

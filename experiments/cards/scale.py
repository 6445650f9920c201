"""The scale of runs relative to their papers: reductions by commands and presets."""

import dataclasses
import fnmatch
import functools
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from experiments.cards.runs import Run, Side
from fedjax_pfl.command import presets
from fedjax_pfl.command.presets.experiment import Experiment
from fedjax_pfl.core import struct
from fedjax_pfl.results import documents

__all__ = [
    "LEVELS",
    "Scale",
    "best",
    "digest_of",
    "of",
    "parts",
    "preset_of",
    "rounds_of",
]

LEVELS = ("paper", "near", "reduced", "not run")
"""From the paper's data, sizes, rounds and seeds to a missing run.

A run is near if one thing that hardly changes a comparison differs, or if the paper
does not state it; it is reduced if it has less training or less data.
"""

_SCALES = Path(__file__).parent / "texts" / "scales.toml"
_OFF = (None, False, 0, "", [])


@dataclasses.dataclass(frozen=True)
class Scale:
    """Scale of a run."""

    level: str  # one of `LEVELS`
    reason: str = ""  # the differences; empty at the paper's scale

    @property
    def is_comparable(self) -> bool:
        """Returns whether the run may decide the paper's claims."""
        return self.level in ("paper", "near")


def of(run: Run | None) -> Scale:
    """Returns the scale of a run, by its command and its preset."""
    if run is None:
        return Scale("not run")
    experiment = preset_of(run.command)
    words = shlex.split(run.command)
    level, reasons = "paper", []
    if rounds_of(run.command) < experiment.num_rounds:
        reasons.append(
            f"{rounds_of(run.command)} of {experiment.num_rounds} rounds were run"
        )
        level = "reduced"
    if overrides := [words[k + 1] for k, w in enumerate(words) if w == "--set"]:
        reasons.append(f"run with {', '.join(overrides)}")
        level = "reduced"
    for pattern, preset in _presets().items():
        if fnmatch.fnmatch(experiment.name, pattern):
            level = max(level, preset["level"], key=LEVELS.index)
            reasons.append(preset["reason"])
            break
    seeds = run.rows["seed"].nunique()
    if seeds < len(experiment.seeds):
        level = max(level, "near", key=LEVELS.index)
        reasons.append(f"{seeds} of {len(experiment.seeds)} seeds were run")
    return Scale(level, "; ".join(reasons))


def parts(runs: Mapping[str, Run], name: str) -> list[Run]:
    """Returns the kept runs of a preset, the nearest to the paper's scale first."""
    # In addition to the run with the preset's name there may be runs of some of its
    # methods, with names that begin with that name and a dash.
    group = [run for n, run in runs.items() if n == name or n.startswith(f"{name}-")]
    return sorted(group, key=lambda run: LEVELS.index(of(run).level))


def best(runs: Mapping[str, Run], name: str, sides: Iterable[Side]) -> Run | None:
    """Returns the run of a preset that is nearest to the paper's and has all sides."""
    sides, candidates = list(sides), parts(runs, name)
    for run in candidates if len(candidates) > 1 else ():
        if all(run.values(side) is not None for side in sides):
            return run
    # If no run has all sides: the run of the preset's name, or None.
    return runs.get(name)


def preset_of(command: str) -> Experiment:
    """Returns the preset of a sweep's command, without its other options."""
    words = shlex.split(command)
    return _preset(words[words.index("--preset") + 1])


@functools.cache
def _presets() -> dict[str, dict[str, str]]:
    """Returns level and difference of presets by patterns of their names."""
    return tomllib.loads(_SCALES.read_text("utf-8"))


@functools.cache
def _preset(name: str) -> Experiment:
    """Builds a preset once: cards need its scale for every claim."""
    import experiments.presets  # noqa: F401 (adds presets of the papers)

    return presets.get(name)


def digest_of(command: str) -> str:
    """Returns the digest of all values that the preset of a command fixes."""
    # It excludes fields that are off, 0 or not given, so that a new field which is off
    # by default does not change digests.
    from fedjax_pfl.engine import groups  # imports JAX

    experiment = preset_of(command)
    grids = [
        groups.config_of(grid.process, grid.model, grid.spec)
        | {f"axis {name}": struct.plain(values) for name, values in grid.axes.items()}
        for grid in experiment.grids
    ]
    grids = [{n: v for n, v in g.items() if v not in _OFF} for g in grids]
    fields = {"rounds": experiment.num_rounds, "seeds": list(experiment.seeds)}
    return documents.digest_of({"grids": grids, **fields})


def rounds_of(command: str) -> int:
    """Returns the rounds of a sweep's command: its option, or its preset's number."""
    words = shlex.split(command)
    if "--rounds" in words:
        return int(words[words.index("--rounds") + 1])
    return preset_of(command).num_rounds

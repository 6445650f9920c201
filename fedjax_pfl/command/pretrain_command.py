"""Pretraining on users outside of the federation: `fedjax-pfl pretrain`.

Arguments are parsed before JAX is imported, so that `--help` answers at once.
"""

import dataclasses
import math
import tempfile
from pathlib import Path
from typing import Any

import typer

from fedjax_pfl.command import cli, completion, outputs
from fedjax_pfl.command.arguments import (
    DataOptions,
    in_budget,
    in_data,
    in_method,
    in_output,
)

__all__ = ["main"]

_TEST = 0.1  # of the examples of these users


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(DataOptions):
    """Options of `pretrain`."""

    preset: str | None = in_method(
        "Preset of the model and the data.",
        autocompletion=completion.presets,
        show_default="the one named like --dataset, digits, or own_data with --data",
    )
    users: float = in_data(
        "Share of the data set's users to train on. A federation that starts from the"
        " file leaves them out.",
        0.2,
        metavar="SHARE",
    )
    epochs: int = in_budget("Passes over their examples.", 5, min=1)
    batch_size: int = in_budget("Examples of a step.", 32, min=1)
    learning_rate: float = in_method("Step size of SGD.", 0.1, metavar="RATE")
    seed: int = in_budget("Seed of the initial parameters and of the order.", 0, min=0)
    out: Path | None = in_output("New file.", metavar="FILE.safetensors")
    quiet: bool = in_output("Print only the file's name.", False)

    def check(self) -> None:
        """Refuses options that cannot be used."""
        super().check()
        if self.out is None or self.out.suffix != ".safetensors":
            raise typer.BadParameter(
                "expected --out with a new file that ends in .safetensors, got"
                f" {str(self.out or '')!r}"
            )

    @property
    def preset_name(self) -> str:
        """The given preset, that of the data set, or that of own data."""
        from fedjax_pfl.command import presets

        if self.preset is not None:
            return self.preset
        return self.dataset if self.dataset in presets.PRESETS else "own_data"


@cli.answered
def _main(context: typer.Context, **values: Any) -> None:
    """Trains one network on all users together."""
    options = _Options(**values)
    options.check()
    outputs.go_on()
    # JAX is imported late, so that `--help` answers at once.
    from fedjax_pfl.core import checks

    # Everything that can refuse an option comes first, without JAX.
    out = options.out or Path()
    if out.exists() or not out.parent.is_dir():
        raise checks.InputError(
            f"Expected --out to be a new file in an existing directory, got '{out}'."
        )
    _check_users(options)
    from fedjax_pfl.results import pretraining

    model, spec = _recipe(options)
    dataset = spec.pretraining()
    if not options.quiet:
        users = len(set(dataset.client.tolist()))
        outputs.say(
            f"Pretraining on {dataset.num_samples:,} examples of {users:,} users of"
            f" {dataset.name}."
        )
    params, judged = _train(options, model, dataset)
    users = pretraining.HeldOut.of(spec)
    assert users is not None
    pretraining.write(out, params, users)
    if options.quiet:
        outputs.say(out)
        return
    outputs.say(f"On a tenth of the examples, held out from training: {judged}.")
    outputs.say(f"Parameters: {out}")
    outputs.say(f"Trainings with --init {out} start there, without these users.")


main = cli.with_options(_main, _Options)


def _check_users(options: _Options) -> None:
    """Refuses named data and tables without users, before JAX is imported."""
    from fedjax_pfl.command.presets import experiment
    from fedjax_pfl.core import checks
    from fedjax_pfl.data import sources
    from fedjax_pfl.data.sources import user

    settings = experiment.parse(options.settings)
    name, *_ = settings.get("federation.dataset", (options.preset or "digits",))
    is_without = options.data is None and name in sources.WITHOUT_CLIENTS
    if options.data is not None and options.label is not None:
        place = (options.data, options.label, options.client, options.data_dir)
        source = user.source_for(*place)
        is_without = False
        if isinstance(source, sources.Csv) and source.client is None:
            # Files of a folder are clients.
            is_without = not source.locate(options.data_dir).root.is_dir()
        name = options.data
    if is_without:
        raise checks.InputError(
            "Expected a data set with clients of its own to hold some of them out, got"
            f" {name!r}."
        )


def _recipe(options: _Options) -> tuple[Any, Any]:
    """Returns the network, without roles and adapters, and the federation's recipe."""
    from fedjax_pfl.command import own_data
    from fedjax_pfl.core import checks, struct

    checks.number("users", options.users, above=0, below=1)
    noun = "network and one data set"
    grid = own_data.one_grid(options.preset_name, options, noun)
    recipe: Any = grid.spec
    if not hasattr(recipe, "held_out_users"):
        raise checks.InputError(
            f"Expected a data set with users, got {type(grid.spec).__name__}."
        )
    spec = dataclasses.replace(recipe, held_out_users=options.users)
    # Without roles and adapters, which choose parameters for a later training.
    return struct.innermost(grid.model), spec


def _train(options: _Options, model: Any, dataset: Any) -> tuple[Any, str]:
    """Trains on all examples together; returns parameters and their metrics."""
    import jax

    import fedjax_pfl as fp
    from fedjax_pfl.core import checks, temporaries
    from fedjax_pfl.data import federation

    # All users are one client: FedAvg with one client is plain training by SGD.
    federated = federation.from_dataset(
        dataset,
        fp.IID(),
        num_clients=1,
        seed=options.seed,
        validation_fraction=0.0,
        test_fraction=_TEST,
    )
    solver = fp.SGD(
        learning_rate=options.learning_rate, epochs=1, batch_size=options.batch_size
    )
    process = fp.FederatedProcess(algorithm=fp.FedAvg(local=solver))
    key = jax.random.key(options.seed, impl="threefry2x32")
    with temporaries.registered(Path(tempfile.mkdtemp())) as folder:
        place = folder / "models"
        result = fp.simulate(
            key,
            process,
            model,
            federated,
            num_rounds=options.epochs,
            evaluate_on=("test",),
            progress=not options.quiet,
            models_to=place,
        )
        (history,) = result.groups
        final = {n: float(v[0, -1, 0, 0, 0]) for n, v in history.metrics.items()}
        status = history.status[0]
        if status == "ok" and not math.isfinite(final["loss"]):
            status = "has no finite loss"
        if status != "ok":
            raise checks.InputError(
                f"The pretraining {status}; expected a --learning-rate below"
                f" {options.learning_rate:g}."
            )
        params = fp.load_models(place).find(model="global").params
    return params, ", ".join(f"{name} {value:.4g}" for name, value in final.items())

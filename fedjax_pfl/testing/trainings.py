"""Short trainings of all parts and forms of execution, to compare their numbers.

`digests` runs the entries of `ROWS`; a new part needs a line there.
"""

import dataclasses
import functools
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import optax

from fedjax_pfl import (
    aggregators,
    algorithms,
    attacks,
    core,
    data,
    local,
    messages,
    models,
    portfolio,
    results,
)
from fedjax_pfl.aggregators import server_optimizers
from fedjax_pfl.algorithms import common_descent
from fedjax_pfl.engine import (
    callbacks,
    derivatives,
    grids,
    simulation,
    stopping,
    streaming,
)
from fedjax_pfl.results import checkpoint, model_files
from fedjax_pfl.round.process import FederatedProcess
from fedjax_pfl.testing import toy

__all__ = ["DTYPES", "ROWS", "Arrays", "Training"]

Arrays = Iterator[tuple[str, np.ndarray]]
"""Names and values of all numbers of a training."""

_WALL_CLOCK = ("compile_seconds", "run_seconds")
DTYPES = ("float32", "float64")
_NOT_NUMBERS = ("config", *_WALL_CLOCK)


def _trained(
    function: Callable[..., Any],
    training: "Training",
    folder: Path,
    *,
    values: tuple[Any, ...] = (),
    **options: Any,
) -> Arrays:
    """Trains, and yields the numbers of the result and the saved models."""
    place = folder / "models"
    options = {"execution": "vmap", **training.options, "models_to": place, **options}
    yield from result_arrays(training.call(function, *values, **options))
    if place.exists():  # which the first of several processes writes
        yield from model_arrays(place)


simulated = functools.partial(_trained, simulation.simulate)
"""Trains in the device's memory."""
streamed = functools.partial(_trained, streaming.simulate_streamed)
"""Trains with the rows of clients in files."""


def gridded(axes: grids.Axes, **options: Any) -> Callable[..., Arrays]:
    """Returns a function that trains a grid."""
    return functools.partial(_trained, simulation.grid, values=(axes,), **options)


@dataclasses.dataclass(frozen=True)
class Resumed:
    """Training in a process that is killed after round 2; it goes on in this one."""

    run: Callable[..., Arrays]

    def __call__(self, training: "Training", folder: Path) -> Arrays:
        (name,) = (name for name, row in ROWS.items() if row is training)
        # A fork of a process with running JAX threads may hang.
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=_train_until_killed, args=(name, folder))
        process.start()
        process.join()
        if process.exitcode != -signal.SIGKILL:
            raise RuntimeError(f"a training to be killed ended with {process.exitcode}")
        yield from self.run(training, folder, checkpoints=_checkpoints(folder))


def _checkpoints(folder: Path) -> checkpoint.Checkpoints:
    """Returns checkpoints at every evaluation."""
    return checkpoint.Checkpoints(folder / "checkpoints", min_seconds=0)


class _Kill(callbacks.Callback):
    """Kills the process after the checkpoint of round 2."""

    def evaluated(self, evaluation: callbacks.Evaluation) -> None:
        if evaluation.round == 2:
            os.kill(os.getpid(), signal.SIGKILL)


def _train_until_killed(name: str, folder: Path) -> None:
    """Trains a row in a process of its own."""
    training = ROWS[name]
    assert isinstance(training.run, Resumed)
    run = training.run.run
    list(run(training, folder, checkpoints=_checkpoints(folder), callbacks=[_Kill()]))


def differentiated(
    fields: str | list[str], **options: Any
) -> Callable[["Training", Path], Arrays]:
    """Returns a function that trains and differentiates in fields."""

    def run(training: "Training", folder: Path) -> Arrays:
        del folder
        defaults = {"evaluate_on": "validation", **options}
        answer = training.call(derivatives.hypergradients, fields, **defaults)
        yield "value", np.asarray(answer.value)
        for kind in ("values", "derivatives"):
            for name, values in getattr(answer, kind).items():
                yield f"{kind}/{name}", np.asarray(values)
        if answer.result is not None:
            yield from result_arrays(answer.result)

    return run


def learned(fields: str, **options: Any) -> Callable[["Training", Path], Arrays]:
    """Returns a function that learns fields."""

    def run(training: "Training", folder: Path) -> Arrays:
        del folder
        answer = training.call(derivatives.learn, fields, seeds=(0,), **options)
        if answer.per != "all":  # its steps are not in the history
            yield "values", answer.best[fields]
            yield "steps", answer.path["objective"].to_numpy()
        yield from result_arrays(answer.result)

    return run


def result_arrays(result: results.Result) -> Arrays:
    """Yields all numbers of a result, but for seconds of a clock."""
    for number, group in enumerate(result.groups):
        for field in dataclasses.fields(group):
            value = getattr(group, field.name)
            if field.name in _NOT_NUMBERS or value is None:
                continue
            values = value if isinstance(value, dict) else {"": value}
            for name, array in values.items():
                path = "/".join(filter(None, (f"group{number}", field.name, name)))
                if isinstance(array, tuple):  # names, and points of grids
                    array = np.array([str(entry) for entry in array])
                yield path, np.asarray(array)


def model_arrays(folder: Path) -> Arrays:
    """Yields the saved models of all clients."""
    saved = model_files.load_models(folder)
    for file in sorted(saved.table["file"]):
        model = saved.find(file=file)
        for name, leaf in _leaves(model.params):
            yield f"models/{file}{name}", leaf
        if model.clients is not None:
            yield f"models/{file}/clients", model.clients


def _leaves(params: core.Params, path: str = "") -> Arrays:
    """Yields the arrays of nested dictionaries."""
    if isinstance(params, dict):
        for name in sorted(params):
            yield from _leaves(params[name], f"{path}/{name}")
    else:
        yield path, np.asarray(params)


@dataclasses.dataclass(frozen=True)
class Training:
    """A short training, evaluated after every second round."""

    process: FederatedProcess
    model: core.Model = models.LogisticRegression()
    federation: Callable[[], Any] = toy.make_federation
    num_rounds: int = 4
    run: Callable[["Training", Path], Arrays] = simulated
    devices: int = 1  # of each process, simulated
    processes: int = 1  # that share the clients
    # Both if a row is of a method or of an execution.
    dtypes: tuple[str, ...] = DTYPES
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the call

    def call(self, function: Callable[..., Any], *values: Any, **options: Any) -> Any:
        """Calls `simulate` or another function with the parts of the training."""
        federation = self.federation()
        arguments = (core.seed_key(0), self.process, self.model, federation, *values)
        defaults = {"eval_every": 2, "evaluate_on": "test", "progress": False}
        options = {**defaults, **self.options, **options}
        return function(*arguments, self.num_rounds, **options)


def of(method: Any, *, cohort: int | None = 5, **fields: Any) -> Training:
    """Returns the training of a method by a cohort, None for all clients."""
    # A row names fields of both classes, which share no name.
    names = {field.name for field in dataclasses.fields(Training)}
    parts = {name: value for name, value in fields.items() if name not in names}
    options = {name: value for name, value in fields.items() if name in names}
    if "participation" not in parts and cohort is not None:
        parts["participation"] = local.UniformCohort(size=cohort)
    return Training(FederatedProcess(algorithm=method, **parts), **options)


def attacked(
    method: algorithms.SingleExchange,
    attack: core.Attack,
    aggregator: core.Aggregator | None = None,
    **fields: Any,
) -> Training:
    """Returns the training of a method with two malicious clients."""
    parts = {"attack": attack, "aggregator": aggregator, "federation": _attacked}
    return of(method, **parts, **fields)


_attacked = functools.partial(toy.make_federation, malicious=(1, 5))
_unlabeled = functools.partial(toy.make_federation, classes=False)


def _quadratics(**fields: Any) -> data.FederationSpec:
    """Returns a specification of quadratics with validation data."""
    source = data.Quadratic(dim=3, noise=1.0)
    return data.FederationSpec(source, data.ByClient(), num_clients=5, **fields)


def _classes(**fields: Any) -> data.FederationSpec:
    """Returns a specification of a small federation of three classes."""
    source = data.GaussianClasses(dim=3, num_classes=3, examples_per_client=12)
    return data.FederationSpec(source, data.ByClient(), num_clients=6, **fields)


def _market() -> core.Federation:
    """Returns a federation of portfolios."""
    spec = portfolio.PortfolioSpec(
        portfolio.SyntheticMarket(num_days=80, num_assets=6),
        num_clients=4,
        assets_per_client=2,
        window=4,
        test_days=20,
        years=2,
        rounds_per_year=1,
    )
    return spec.build()


def _own_network() -> core.Model:
    """Returns a network of flax with batch normalization."""
    from flax import linen

    class Network(linen.Module):
        @linen.compact
        def __call__(self, x, train: bool = False):
            x = linen.Dense(4)(x)
            x = linen.BatchNorm(use_running_average=not train)(x)
            return linen.Dense(toy.NUM_CLASSES)(linen.relu(x))

    return models.from_flax(Network())


SGD = local.SGD(learning_rate=0.1, epochs=2, batch_size=4)
FULL = local.SGD(learning_rate=0.3, batch_size=64)
MLP = models.MLP(widths=(4,))
NORMALIZED = models.MLP(widths=(4,), normalization="batch")
FEDBN = models.ParameterRoles(NORMALIZED, personal="_norm/", local_statistics=True)
PERSONAL = models.ParameterRoles(MLP, personal="^head", frozen="^hidden_0/bias")
SERIES = {"cohort": 3, "model": portfolio.EIIE(units=3), "federation": _market}
HALVES = local.Stragglers(fraction=0.5, max_epochs=2)
COSINE = optax.cosine_decay_schedule(0.2, 30)
CLIP = messages.ClipNorm(norm=0.5)
SECURE = aggregators.Mean()
MOMENTUM = server_optimizers.ServerMomentum()
DEVICES = local.Devices(examples_per_second=20.0, spread=0.8, upload=500.0, online=0.6)
FLAME = algorithms.Flame(lam=1.0, kappa=2.0, local=SGD)
OWN_LAM = algorithms.Flame(lam=1.0, kappa=None, rho=2.0, local=SGD)
FEDAVG = algorithms.FedAvg(local=SGD)
# Client 2 diverges; the others do not.
RATES = np.array([0.1, 0.2, 1e30, 0.1, 0.05, 0.1, 0.3, 0.1])
# Without malicious clients the diverging one is honest.
BLOWN_UP: dict[str, Any] = {
    "model": models.Quadratic(),
    "federation": functools.partial(_unlabeled, malicious=()),
    "per_client": {"algorithm.local.learning_rate": RATES},
}
EVERYTHING: dict[str, Any] = {  # of the rows that compare forms of execution
    "federation": _attacked,
    "attack": attacks.SignFlip(scale=2.0),
    "transforms": (CLIP, messages.TopK(fraction=0.5)),
    "work": HALVES,
}
CHUNKS: dict[str, Any] = {"options": {"execution": "chunk=2"}}
TWO_DEVICES: dict[str, Any] = {"devices": 2, "options": {"execution": "shard=2"}}
TWO_PROCESSES: dict[str, Any] = {"processes": 2, "options": {"execution": "shard"}}
MEDIAN = dict(EVERYTHING, aggregator=aggregators.CoordinateMedian(), model=MLP)
QUADRATIC: dict[str, Any] = {
    "model": models.Quadratic(),
    "federation": _quadratics,
    "cohort": None,
}
ADAPTIVE: dict[str, Any] = {
    "participation": local.PoissonCohort(rate=0.4, capacity=5),
    "aggregator": SECURE,
    "transforms": (messages.AdaptiveClip(norm=0.1), messages.GaussianNoise()),
}
GRID = {"algorithm.lam": [0.5, 1.0], "seed": [0, 1]}


_METHODS = {
    "apfl": algorithms.APFL(local=SGD, alpha_decay=0.02),
    "centralized": algorithms.Centralized(local=SGD),
    "ditto": algorithms.Ditto(local=SGD, personal=local.SGD(batch_size=8)),
    "fedacs": algorithms.FedACS(pick_quantile=0.55, mixing=0.9, local=SGD),
    "fedadmm": algorithms.FedADMM(mu=0.5, local=SGD),
    "fedala": algorithms.FedALA(
        adapted="kernel$", start_epochs=12, threshold=0.01, local=SGD
    ),
    "fedamp": algorithms.FedAMP(local=SGD),
    "fedavg, fine-tuned": algorithms.FedAvg(local=SGD, fine_tune=SGD),
    "fedbabu": algorithms.FedBABU(head="bias$", local=SGD, fine_tune=SGD),
    "feddyn": algorithms.FedDyn(alpha=0.5, weighting="examples", local=SGD),
    "fedfomo": algorithms.FedFomo(num_models=3, epsilon_decay=0.0, local=SGD),
    "fedfv": algorithms.FedFV(alpha=0.3, tau=2, local=SGD, keeps_local=True),
    "fedmgda": algorithms.FedMGDA(
        eps=0.2, server_learning_rate=0.1, keeps_local=True, local=SGD
    ),
    "fednova": algorithms.FedNova(local=dataclasses.replace(SGD, momentum=0.5)),
    "fedper": algorithms.FedPer(head="bias$", local=SGD),
    "fedpg": algorithms.FedPG(
        local=dataclasses.replace(SGD, decay=0.9), gradient="epochs", gamma=0.3
    ),
    "fedplus": algorithms.FedPlus(alpha=0.5, rho=0.2, lam=0.1, local=SGD),
    "fedproto": algorithms.FedProto(local=SGD),
    "fedprox": algorithms.FedProx(mu=0.5, local=SGD),
    "fedrep": algorithms.FedRep(
        head="bias$", head_local=SGD, local=SGD, send_heads=True, fine_tune=SGD
    ),
    "fedrod": algorithms.FedROD(head="kernel$", hyper_width=4, local=SGD),
    "fedsam": algorithms.FedSAM(rho=0.2, local=SGD),
    "flame": FLAME,
    "heur_fedamp": algorithms.HeurFedAMP(local=SGD, self_weight=0.2),
    "knn_per": algorithms.KNNPer(num_neighbors=3, local=SGD),
    "local": algorithms.Local(local=SGD),
    "lp_proj": algorithms.LpProj(
        lam=2.0,
        learning_rate=0.3,
        clip_norm=0.5,
        dim=6,
        num_steps=2,
        inner_steps=3,
        batch_size=4,
    ),
    "lp_proj, admm": algorithms.LpProj(
        form="admm", lam=2.0, kappa=2.0, dim=3, orthogonal=True, local=SGD
    ),
    "majority": algorithms.Majority(),
    "moon": algorithms.MOON(mu=2.0, local=SGD),
    "multi_krum": algorithms.MultiKrum(num_malicious=1, local=SGD),
    "per_fedavg": algorithms.PerFedAvg(
        inner_learning_rate=0.1,
        learning_rate=0.2,
        num_steps=3,
        batch_size=4,
        hessian="finite_difference",
    ),
    "pfedme": algorithms.PFedMe(
        lam=2.0, learning_rate=0.3, num_steps=3, inner_steps=2, batch_size=4
    ),
    "scaffold": algorithms.Scaffold(local=SGD),
    "splitgp": algorithms.SplitGP(local=SGD),
}
_FIELDS: dict[str, dict[str, Any]] = {  # of the trainings of some methods
    "centralized": {"cohort": None},
    "fednova": {"work": HALVES},
    "fedproto": {"model": MLP},
    "knn_per": {"model": MLP},
    "moon": {"model": MLP},
    "splitgp": {"model": MLP},
}
_ATTACKS = {
    "sign_flip, coordinate_median": of(FEDAVG, **MEDIAN),
    "gaussian, geometric_median": attacked(
        FLAME, attacks.Gaussian(), aggregators.GeometricMedian()
    ),
    "same_value, fedplus by layers": attacked(
        algorithms.FedPlus.layer_wise(
            ("bias$", ""), ("l1", "l2"), rho_quantile=0.5, alpha=0.5, local=SGD
        ),
        attacks.SameValue(),
    ),
    "scaling, norm_clipping": attacked(
        FEDAVG, attacks.Scaling(), aggregators.NormClipping(num_malicious=1)
    ),
    "ipm, krum": attacked(
        algorithms.Ditto(local=SGD, unsynced=True),
        attacks.IPM(),
        aggregators.Krum(num_malicious=1),
    ),
    "alie, fedamp": attacked(algorithms.FedAMP(local=SGD), attacks.ALIE()),
    "min_max, trimmed_mean": attacked(
        algorithms.PFedMe(num_steps=2, inner_steps=2, batch_size=4),
        attacks.MinMax(),
        aggregators.TrimmedMean(num_malicious=1),
    ),
    "min_sum, centered_clipping": attacked(
        algorithms.Flame(lam=1.0, kappa=2.0, local=SGD, center="joint"),
        attacks.MinSum(),
        aggregators.CenteredClipping(),
    ),
    "mimic, bucketing": attacked(FEDAVG, attacks.Mimic(), aggregators.Bucketing()),
    "gaussian, bulyan": attacked(
        FEDAVG, attacks.Gaussian(), aggregators.Bulyan(num_malicious=1), cohort=None
    ),
    "gaussian, meamed": attacked(
        algorithms.FedProx(mu=0.5, local=SGD),
        attacks.Gaussian(),
        aggregators.MeaMed(num_malicious=1),
    ),
    "gaussian, nearest_neighbor_mixing": attacked(
        FEDAVG, attacks.Gaussian(), aggregators.NearestNeighborMixing(num_malicious=1)
    ),
    "modular_mean": of(FEDAVG, aggregator=aggregators.ModularMean()),
    "product_mean": of(
        FEDAVG,
        aggregator=aggregators.ProductMean(),
        model=models.lora(MLP, targets="kernel", rank=1),
    ),
    "weighted_mean over all": of(
        algorithms.Flame(lam=1.0, weighting="examples", local=SGD),
        aggregator=aggregators.WeightedMean(),
    ),
}
_TRANSFORMS = {
    "clip_norm per layer, apfl": of(
        algorithms.APFL(local=SGD),
        transforms=(messages.ClipNorm(norm=0.3, per_layer=True),),
    ),
    "top_k with feedback, flame": attacked(
        FLAME,
        attacks.SignFlip(),
        transforms=(messages.TopK(fraction=0.4, error_feedback=True),),
    ),
    "random_k and qsgd, scaffold": of(
        algorithms.Scaffold(local=SGD),
        transforms=(messages.RandomK(fraction=0.5), messages.QSGD()),
    ),
    "sign_scale and server momentum": of(
        FEDAVG, transforms=(messages.SignScale(),), server_optimizer=MOMENTUM
    ),
    "low_rank, fedprox": of(
        algorithms.FedProx(mu=0.1, local=SGD),
        transforms=(messages.LowRank(rank=1, error_feedback=True),),
        model=MLP,
    ),
    "adaptive_clip and gaussian_noise, poisson": of(FEDAVG, **ADAPTIVE),
    "clip_norm and gaussian_noise, flame": of(
        FLAME, aggregator=SECURE, transforms=(CLIP, messages.GaussianNoise())
    ),
    "tree_noise, cyclic": of(
        FEDAVG,
        participation=local.CyclicCohorts(size=3),
        aggregator=SECURE,
        transforms=(CLIP, messages.TreeNoise()),
    ),
    "banded_noise, cyclic": of(
        FEDAVG,
        participation=local.CyclicCohorts(size=2),
        aggregator=SECURE,
        transforms=(CLIP, messages.BandedNoise(bands=3, rounds=6)),
    ),
}
_PARTICIPATION = {
    "buffered, fedavg": of(
        FEDAVG,
        participation=local.Buffered(size=2, concurrency=4, devices=DEVICES),
        num_rounds=6,
    ),
    "buffered, flame": of(
        FLAME,
        participation=local.Buffered(
            size=2, concurrency=5, max_staleness=2, devices=DEVICES
        ),
        num_rounds=6,
    ),
    "buffered with messages changed on their way": of(
        FEDAVG,
        participation=local.Buffered(size=3, concurrency=5, devices=DEVICES),
        attack=attacks.SignFlip(),
        transforms=(messages.TopK(fraction=0.5, error_feedback=True),),
        server_optimizer=server_optimizers.ServerAdam(),
        federation=_attacked,
    ),
    "synchronous, partial work": of(
        FEDAVG,
        participation=local.Synchronous(
            size=3, select=5, deadline=0.7, late="partial", devices=DEVICES
        ),
        server_optimizer=server_optimizers.ServerAdam(),
    ),
    "budgets per client": of(
        FEDAVG, cohort=None, work=local.ClientBudgets(epochs=(0, 1, 2))
    ),
}
_LOCAL_WORK = {
    "fedpg, searched": of(
        algorithms.FedPG(
            local=local.SGD(learning_rate=0.1),
            search=common_descent.Armijo(),
            history="last_round",
            layerwise=True,
            protection="orthogonal",
            personal_length="mean",
            personal="refresh",
        )
    ),
    "optax": of(
        algorithms.FedAvg(
            local=local.Optax(hyperparameters={"learning_rate": 0.05}, batch_size=4),
            weighting="uniform",
        )
    ),
    "to_tolerance": of(
        algorithms.Flame(
            lam=1.0,
            kappa=2.0,
            local=local.ToTolerance(learning_rate=0.3, max_steps=9),
        )
    ),
    "private_sgd": of(
        algorithms.FedAvg(local=local.PrivateSGD(batch_size=2)), cohort=None
    ),
    "sgd with momentum, clip and weight decay": of(
        algorithms.FedAvg(
            local=dataclasses.replace(
                SGD, momentum=0.5, clip_norm=0.3, weight_decay=0.01, decay=0.9
            )
        )
    ),
    "schedule of steps": of(
        algorithms.FedAvg(local=dataclasses.replace(SGD, learning_rate=COSINE))
    ),
    "schedule of rounds, flame": of(
        algorithms.Flame(
            local=dataclasses.replace(SGD, learning_rate=COSINE, per_round=True)
        )
    ),
}
_MODELS = {
    "batch normalization of flax": of(FEDAVG, model=_own_network()),
    "batch normalization, server momentum": of(
        algorithms.FedProx(mu=0.1, local=SGD),
        model=NORMALIZED,
        server_optimizer=MOMENTUM,
    ),
    "local statistics, flame": of(FLAME, model=FEDBN),
    "personal and frozen parameters": of(
        FEDAVG, model=PERSONAL, transforms=(messages.TopK(fraction=0.5),)
    ),
    "personal parameters, ditto": of(algorithms.Ditto(local=SGD), model=PERSONAL),
    "portfolios": of(FEDAVG, **SERIES),
    "portfolios, flame": of(FLAME, **SERIES),
}
_ENDS = {
    "non-finite: stop": of(FEDAVG, **BLOWN_UP),
    "non-finite: drop": of(
        FEDAVG,
        **BLOWN_UP,
        on_nonfinite="drop",
        aggregator=aggregators.CoordinateMedian(),
    ),
    "non-finite: messages of malicious clients": of(
        FEDAVG, **dict(BLOWN_UP, federation=_unlabeled)
    ),
    "non-finite: drop, flame": of(FLAME, **BLOWN_UP, on_nonfinite="drop"),
    "non-finite: freeze": of(FEDAVG, **BLOWN_UP, on_nonfinite="freeze"),
    "values per client": of(
        algorithms.Ditto(local=SGD),
        per_client={"algorithm.lam": np.linspace(0.1, 0.8, 8)},
    ),
    "stop without progress": of(
        FEDAVG,
        num_rounds=8,
        options={
            "stop_when": stopping.StopWhen(patience=1, min_delta=0.5),
            "evaluate_on": "validation",
        },
    ),
    "halving": of(
        FLAME,
        num_rounds=6,
        run=gridded(
            {"algorithm.lam": [0.1, 0.5, 1.0]},
            stop_when=stopping.Halving(min_rounds=2),
            evaluate_on="validation",
        ),
    ),
    "best models of each client": of(
        FLAME, options={"models_of": "best-of-each", "evaluate_on": "validation"}
    ),
    "sampled clients, evaluated at times": of(
        FEDAVG,
        options={"eval_clients": 4, "evaluate_on": {"test": 1, "validation": 2}},
    ),
    "evaluated on others": of(
        algorithms.Ditto(local=SGD),
        cohort=3,
        federation=lambda: _classes(unseen_fraction=0.34, num_others=2).build(),
        options={"evaluate_on": ("train", "validation", "others", "everybody")},
    ),
}
# The same training in all forms of execution; their digests differ by rounding.
_FORMS = {
    "flame with everything": of(FLAME, **EVERYTHING),
    "... in chunks": of(FLAME, **EVERYTHING, **CHUNKS),
    "... on two devices": of(FLAME, **EVERYTHING, **TWO_DEVICES),
    "... of two processes": of(FLAME, **EVERYTHING, **TWO_PROCESSES),
    "... killed and resumed": of(FLAME, **EVERYTHING, run=Resumed(simulated)),
    "... streamed": of(FLAME, **EVERYTHING, run=streamed),
    "... streamed in chunks": of(FLAME, **EVERYTHING, run=streamed, **CHUNKS),
    "... streamed on two devices": of(FLAME, **EVERYTHING, run=streamed, **TWO_DEVICES),
    "... streamed by two processes": of(
        FLAME, **EVERYTHING, run=streamed, **TWO_PROCESSES
    ),
    "... streamed, killed and resumed": of(FLAME, **EVERYTHING, run=Resumed(streamed)),
    "... in a grid": of(
        FLAME, **EVERYTHING, run=gridded({"algorithm.lam": [1.0, 0.5]})
    ),
    "median in chunks": of(FEDAVG, **MEDIAN, **CHUNKS),
    "median on two devices": of(FEDAVG, **MEDIAN, **TWO_DEVICES),
    "median, streamed": of(FEDAVG, **MEDIAN, run=streamed),
    "schedule of steps, streamed": of(
        algorithms.FedAvg(local=dataclasses.replace(SGD, learning_rate=COSINE)),
        run=streamed,
    ),
    "grid of points and seeds": of(
        FLAME, cohort=3, federation=_classes, run=gridded(GRID, points_per_chunk=2)
    ),
    "grid of methods and static fields": of(
        FEDAVG,
        run=gridded(
            [
                {"algorithm": FEDAVG, "algorithm.local.batch_size": 3},
                {"algorithm": algorithms.Ditto(local=SGD)},
            ]
        ),
    ),
}
_PARTS_IN_FORMS = {
    "server momentum, killed and resumed": of(
        FEDAVG, server_optimizer=MOMENTUM, run=Resumed(simulated)
    ),
    "local statistics on two devices": of(FLAME, model=FEDBN, **TWO_DEVICES),
    "batch normalization, streamed": of(FLAME, model=NORMALIZED, run=streamed),
    "adaptive_clip, streamed": of(
        FEDAVG, **ADAPTIVE, server_optimizer=MOMENTUM, run=streamed
    ),
    "error feedback, streamed": of(
        FLAME, transforms=(messages.SignScale(),), run=streamed
    ),
    "personal parameters, streamed": of(FLAME, model=PERSONAL, run=streamed),
    "statistics of clients, streamed": of(FLAME, model=FEDBN, run=streamed),
    "series, streamed": of(FLAME, **SERIES, run=streamed),
    "late clients, streamed": of(
        FLAME, participation=local.Buffered(size=3, concurrency=5), run=streamed
    ),
}
_DERIVATIVES = {
    "hypergradient": of(
        FLAME,
        **QUADRATIC,
        run=differentiated(["algorithm.lam", "algorithm.local.learning_rate"]),
    ),
    "hypergradient per client": of(
        OWN_LAM,
        **QUADRATIC,
        per_client={"algorithm.lam": np.linspace(0.5, 1.0, 5)},
        run=differentiated("per_client.algorithm.lam"),
    ),
    "hypergradient of a fixed point": of(
        algorithms.Ditto(lam=0.5, local=FULL, personal=FULL),
        **QUADRATIC,
        num_rounds=30,
        run=differentiated("algorithm.lam", implicit=True, eval_every=30),
    ),
    "learned field": of(FLAME, **QUADRATIC, run=learned("algorithm.lam")),
    "learned per client": of(
        OWN_LAM,
        **QUADRATIC,
        run=learned("algorithm.lam", per="client", num_trainings=2),
    ),
    "learned per layer": of(
        algorithms.Ditto(local=SGD),
        cohort=3,
        federation=_classes,
        num_rounds=2,
        run=learned("algorithm.lam", per="layer", num_trainings=2),
    ),
}


def _only(dtype: str, rows: dict[str, Training]) -> dict[str, Training]:
    """Returns rows in one data type, which leaves time for others."""
    return {n: dataclasses.replace(row, dtypes=(dtype,)) for n, row in rows.items()}


ROWS: dict[str, Training] = {
    **{
        name: of(method, **_FIELDS.get(name, {}), options={"diagnostics": True})
        for name, method in _METHODS.items()
    },
    **_PARTICIPATION,
    **_FORMS,
    **_only("float32", _PARTS_IN_FORMS),
    **_only("float32", _ATTACKS),
    **_only("float32", _TRANSFORMS),
    **_only("float32", _LOCAL_WORK),
    **_only("float32", _MODELS),
    **_only("float32", _ENDS),
    **_only("float64", _DERIVATIVES),
}
"""Trainings by name."""

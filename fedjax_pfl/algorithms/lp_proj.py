"""Lp-Proj: personal models coupled in a random low-dimensional projection only.

Problem: `min_w (1/N) sum_i min_theta f_i(theta) + lam h(w - P theta)` with
`h(c) = ||c||_q^q / q`, q = 2 or 1 (`norm`), and a fixed P `[dim, D]` whose rows are
normal, of length 1, drawn once and the same for all. w lives in R^dim: `dim` numbers
per message whatever the model. One round, for members i:

`original` (Lin, Han, Li, Zhang), from `w_i = w`, R times

    theta_i <- theta_i - eta_p (clip(grad f_i) + lam P' r(P theta_i - w_i)
                                + mu theta_i)                     K times, K batches
    w_i     <- w_i - eta lam r(w_i - P theta_i)

with `r = grad h`, c at q = 2 and sign c at q = 1, and
`w <- (1 - beta) w + beta mean_S w_i`; or `admm`, which is FLAME with P theta_i in
place of theta_i (q = 2),

    theta_i ~= argmin f_i(theta) + lam/2 ||P theta - w_i||^2      started at theta_i
    w_i     = (P theta_i + kappa (w - p_i)) / (1 + kappa)
    p_i    += w_i - w
    u_i     = w_i + p_i                                           the upload
    w       = mean of u_i over ALL clients, cached for absent ones

| symbol | field | shape |
|---|---|---|
| theta_i, the personal model | `clients.theta` | `[N, *P]` |
| w_i, p_i (`admm` only) | `clients.w_local`, `.p` | `[N, dim]` |
| w_i after R steps, or u_i | message | `[dim]` per member |
| w | `server.w` | `[dim]` |
| P, a row for every number of w | `server.projection` | `[dim, *P]` |
| R, K; eta, eta_p, beta, mu | `num_steps`, `inner_steps`; see `LpProj` | |

w starts at 0 in the original form, as in the release, and at `P theta^0` with all w_i
in the other, the start of FLAME's theory. There is no global model: w does not say
what theta is, so that `personal` is the only predictor. P is kept in the server's
state, drawn once per training, and is not counted as sent: clients draw it from the
run's seed.

Stability, for L-smooth f_i: `eta_p (L + lam ||P||^2 + mu) < 2` and `eta lam < 2`; ||P||
is 1 where `orthogonal`, else about `1 + sqrt(dim / D)`. Limits: with `dim = D` and
`orthogonal` the ADMM form is `Flame` with the same kappa, in rotated coordinates; with
R = 1 and full batches the original form's stationary points are the problem's, and
with R > 1 w_i goes on towards P theta_i within a round.

Reference: Lin, Han, Li, Zhang, "Personalized Federated Learning towards Communication
Efficiency, Robustness and Fairness", NeurIPS 2022; the ADMM form is Algorithm 2 of
FLAME's paper, which says "upload z_i" and means u_i. Deviations from the release, with
reasons: only members train (there all clients do, N/K times the work); `r(c)` is the
gradient of h in both steps, where the release's general code takes that of the norm
itself in the step of w_i, `sign(c) (|c| / ||c||_q)^(q-1)`, which is equal at q = 1 but
at q = 2 has length 1 however close w_i is; a batch is a fresh uniform subset, as in
`PFedMe` (theirs walk through the examples). FLAME's release has no step of w_i for
Lp-Proj, so that its w never changes.
"""

import dataclasses
import functools
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.flatten_util import ravel_pytree

from fedjax_pfl import aggregators, core, local
from fedjax_pfl.algorithms import base, common
from fedjax_pfl.core import (
    ClientView,
    Downlink,
    Model,
    byte_counts,
    checks,
    client_rows,
    factorizations,
    struct,
)
from fedjax_pfl.local import minibatch_scan
from fedjax_pfl.round.exchange import Exchange

__all__ = ["LpProj", "draw_projection", "project"]

_PROJECTION = 0x50  # what the key of P is folded with; the network has the key itself


@struct.pytree_dataclass
class LpProjServer:
    """State of the server; see the module's table."""

    w: jax.Array
    projection: core.Tree


@struct.pytree_dataclass
class LpProjClient:
    """State of one client; see the module's table."""

    theta: core.Params
    w_local: jax.Array | None = None
    p: jax.Array | None = None


def draw_projection(
    key: core.Key, params: core.Params, dim: int, orthogonal: bool
) -> core.Tree:
    """Draws P `[dim, *P]` with random directions of the parameters, of length 1."""
    flat, unravel = ravel_pytree(params)
    rows = jax.random.normal(key, (dim, flat.size), flat.dtype)
    if orthogonal:
        rows = factorizations.orthonormal(rows.T).T
    else:
        rows = rows / jnp.linalg.norm(rows, axis=1, keepdims=True)
    return jax.vmap(unravel)(rows)


def project(projection: core.Tree, params: core.Params) -> jax.Array:
    """Returns `P theta` `[dim]` of P `[dim, *P]`, at highest precision."""
    parts = jax.tree.map(
        lambda rows, leaf: jnp.tensordot(
            rows, leaf, axes=leaf.ndim, precision=lax.Precision.HIGHEST
        ),
        projection,
        params,
    )
    return functools.reduce(jnp.add, jax.tree.leaves(parts))


@struct.pytree_dataclass
class LpProj(base.SingleExchange):
    """Lp-Proj-2, its variant with the l1 norm, and its ADMM form.

    Attributes:
      lam: `[]` weight of the coupling, > 0.
      kappa: `[]` `admm`: ratio `rho N / lam`, > 0; see `Flame`.
      learning_rate: `[]` `original`: eta, > 0, of w_i; eta lam above 1 overshoots.
      inner_learning_rate: `[]` `original`: eta_p, > 0, of theta_i.
      server_learning_rate: `[]` `original`: beta, > 0; 1 takes the mean.
      weight_decay: `[]` `original`: mu, at least 0.
      clip_norm: `[]` `original`: longest gradient of f_i in a step of theta_i, > 0, or
        None; coupling and weight decay are not clipped.
      local: `admm`: local solver, or None for `SGD()`; refused by `original`, whose
        steps are its own.
      form: `original` or `admm`.
      dim: rows of P, at most the D numbers of the model.
      orthogonal: whether rows of P are orthogonal to each other.
      norm: q, 2 or 1; `admm` has 2 only.
      num_steps: `original`: R, steps of w_i per round. A straggler's budget of epochs
        caps them: each counts as one epoch.
      inner_steps: `original`: K, steps of theta_i, each with a batch of its own, for
        one of w_i.
      batch_size: `original`: B, at least 1.
    """

    lam: Any = struct.traced_field(default=15.0, above=0, search=(0.1, 50.0))
    kappa: Any = struct.traced_field(
        default=1.0, above=0, unsearched="of the form `admm` only"
    )
    learning_rate: Any = struct.traced_field(default=0.1, above=0, search=(0.003, 3.0))
    inner_learning_rate: Any = struct.traced_field(
        default=0.1, above=0, search=(0.003, 3.0)
    )
    server_learning_rate: Any = struct.traced_field(
        default=1.0, above=0, search=(0.3, 10.0)
    )
    weight_decay: Any = struct.traced_field(
        default=0.001, at_least=0, unsearched="a property of the problem"
    )
    clip_norm: float | None = struct.traced_field(
        default=60.0, above=0, unsearched="a guard against divergence"
    )
    local: core.Solver | None = None
    form: Literal["original", "admm"] = "original"
    dim: int = struct.static_field(default=10, at_least=1)
    orthogonal: bool = struct.static_field(default=False)
    norm: int = struct.static_field(default=2, at_least=1, at_most=2)
    num_steps: int = struct.static_field(default=5, at_least=1)
    inner_steps: int = struct.static_field(default=20, at_least=1)
    batch_size: int = struct.static_field(default=64, at_least=1)

    def __post_init__(self):
        if self.form == "admm" and self.norm != 2:
            raise checks.InputError(
                "Expected norm=2 with form='admm', whose step of w_i is that of "
                f"squares, got {self.norm!r}."
            )
        if self.form == "original" and self.local is not None:
            raise checks.InputError(
                "Expected no local solver with form='original', whose steps are those"
                " of learning_rate, inner_learning_rate and batch_size, got"
                f" local={checks.shown(self.local)}."
            )

    @classmethod
    def with_solver(cls, solver: core.Solver) -> Self:
        """Takes no solver: the original form has its own steps."""
        return cls()

    @property
    def aggregate_over(self) -> str:
        """The members' messages or, in the ADMM form, all clients' messages."""
        return "cohort" if self.form == "original" else "all"

    def default_aggregator(self) -> core.Aggregator:
        """Returns the uniform mean."""
        return aggregators.Mean()

    def init(
        self,
        key: core.Key,
        model: Model,
        population: core.Population,
        data: core.ClientData,
    ):
        """Draws one network and one projection for all clients."""
        params = model.init(key)
        if self.dim > client_rows.size(params):
            raise checks.InputError(
                f"Expected dim to be at most the model's {client_rows.size(params)} "
                f"numbers, got {self.dim}."
            )
        projection = draw_projection(
            jax.random.fold_in(key, _PROJECTION), params, self.dim, self.orthogonal
        )
        w = project(projection, params)
        if self.form == "original":
            zero = LpProjServer(w=jnp.zeros_like(w), projection=projection)
            return zero, LpProjClient(theta=params), None
        client = LpProjClient(theta=params, w_local=w, p=jnp.zeros_like(w))
        return LpProjServer(w=w, projection=projection), client, w

    def reference(self, server: LpProjServer):
        """Returns the server's w, which messages are compared with."""
        return server.w

    def coupling(
        self, projection: core.Tree, theta: core.Params, w_local: jax.Array
    ) -> jax.Array:
        """Returns `h(P theta - w_i)` `[]`: half the squared l2 norm, or the l1 norm."""
        gap = project(projection, theta) - w_local
        return jnp.vdot(gap, gap) / 2 if self.norm == 2 else jnp.abs(gap).sum()

    def client_update(
        self, view: ClientView, down: Downlink, client: LpProjClient, model: Model
    ):
        """Runs the local work of either form."""
        update = self._original if self.form == "original" else self._admm
        client, message, info = update(view, down.shared, client, model)
        return client, view.upload(message), info.report(unconverged=~info.converged)

    def _original(
        self, view: ClientView, server: LpProjServer, client: LpProjClient, model: Model
    ):
        """Takes R steps of w_i, each after K steps of theta_i."""
        plain = local.DataLoss(model)
        gradient = jax.grad(plain.with_statistics, argnums=1, has_aux=True)
        pull = jax.grad(self.coupling, argnums=1)

        def step(step_key: core.Key, carry: core.Tree, batches: tuple[core.Batch, ...]):
            theta, w_local, running = carry
            batch = batches[0].with_statistics(running)
            slope, running = gradient(step_key, theta, batch, None)
            if self.clip_norm is not None:
                # Only grad f_i is clipped, not the coupling.
                longest = jnp.maximum(optax.tree.norm(slope), self.clip_norm)
                slope = optax.tree.scale(self.clip_norm / longest, slope)
            # theta_i <- theta_i
            #   - eta_p (clip(grad f_i) + lam P' r(P theta_i - w_i) + mu theta_i).
            pulled = pull(server.projection, theta, w_local)
            theta = jax.tree.map(self._inner_step, theta, slope, pulled)
            return theta, w_local, running

        def w_step(epoch: jax.Array, carry: core.Tree):
            theta, w_local, running = carry
            # w_i <- w_i - eta lam r(w_i - P theta_i).
            slope = jax.grad(self.coupling, argnums=2)(
                server.projection, theta, w_local
            )
            return theta, w_local - self.learning_rate * self.lam * slope, running

        # Epochs of the scan are the R steps of w_i, its steps the K of theta_i.
        (theta, w_local, running), info = local.local_scan(
            view,
            step,
            (client.theta, server.w, view.data.statistics),
            batch_size=self.batch_size,
            epochs=self.num_steps,
            sampler=minibatch_scan.independent_batch,
            epoch_steps=self.inner_steps,
            epoch_end=w_step,
            dtype=minibatch_scan.params_dtype(client.theta),
        )
        info = dataclasses.replace(info, statistics=running)
        return LpProjClient(theta=theta), w_local, info

    def _inner_step(self, theta: jax.Array, slope: jax.Array, pulled: jax.Array):
        """Takes one step of theta_i in one leaf."""
        direction = slope + self.lam * pulled + self.weight_decay * theta
        return theta - self.inner_learning_rate * direction

    def _admm(
        self, view: ClientView, server: LpProjServer, client: LpProjClient, model: Model
    ):
        """Solves for theta_i, then updates FLAME's local copy and dual in R^dim."""
        plain = local.DataLoss(model)

        def pull(theta: core.Params, w_local: jax.Array):
            return self.lam * self.coupling(server.projection, theta, w_local)

        solver = local.SGD() if self.local is None else self.local
        # theta_i ~= argmin f_i(theta) + lam/2 ||P theta - w_i||^2, from theta_i.
        theta, _, info = solver.solve(
            view, plain.plus(pull), client.theta, client.w_local
        )
        # w_i = (P theta_i + kappa (w - p_i)) / (1 + kappa); then p_i and u_i.
        w_local = common.local_consensus_update(
            project(server.projection, theta),
            server.w,
            client.p,
            share=1 / (1 + self.kappa),
        )
        p = common.dual_update(client.p, w_local, server.w)
        return LpProjClient(theta=theta, w_local=w_local, p=p), w_local + p, info

    def server_update(
        self,
        ctx: core.RoundContext,
        server: LpProjServer,
        aggregate: core.Message,
        uploads: core.Upload,
    ):
        """Returns `(1 - beta) w + beta mean`, or the mean of all messages."""
        if self.form == "original":
            aggregate = common.relaxed(server.w, aggregate, self.server_learning_rate)
        return LpProjServer(w=aggregate, projection=server.projection)

    def round(self, state: core.State, exchange: Exchange):
        """Runs the usual exchange; P, which all draw from one seed, is not sent."""
        state, info = super().round(state, exchange)
        # The usual round has counted P with the server state.
        down = client_rows.num_bytes(state.server.w) * exchange.ctx.cohort.shape[0]
        return state, dataclasses.replace(info, bytes_down=byte_counts.words(down))

    def parameters(self, server: LpProjServer, client: LpProjClient):
        """Returns the personal model; w is no model."""
        return {"personal": client.theta}

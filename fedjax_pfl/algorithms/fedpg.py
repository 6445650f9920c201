"""FedPG and S-FedPG: common descent, and personal models that protect the global one.

Problem: `min_w (f_1(w), ..., f_N(w), F(w))` with `F = -cos(L, 1)`, L the clients'
training losses: all losses fall together, and stay in proportion. Round t, cohort S of
K, with messages `(L_i, g_i)` taken at `w = w^t`:

    q_j  = (mu / ||g_j||) g_j           rows: members, absent clients, grad F; mu the
                                        median norm of the members' gradients
    lam  = argmin ||sum_j lam_j q_j||^2   over the simplex
    d    = -sum_j lam_j q_j,  ds = sigma d,  sigma = ||mean of member rows|| / ||d||
    w^{t+1} = w + step ds               step = eta_t (FedPG), or searched (S-FedPG)
    p_i  = the point nearest to -q_i with q_j . p <= 0 for all members and absent j != i
    u_i  = (1 - gamma) p_i - gamma q_i
    theta_i = w + eta_t (||g_i|| / ||u_i||) u_i

`eta_t = eta 0.999^t`. `gradient="exact"` takes `L_i`, `g_i` over all training examples;
with `"epochs"` `g_i = (w - w_i) / eta_t` after local epochs of SGD from w to w_i, and
gamma = 1 gives `theta_i = w_i`. The last gradients of absent clients stand in for them
as long as they can be expected back (`history`, FedLF).

| symbol | field | shape |
|---|---|---|
| w | `server.model` | `[*P]` |
| theta_i | `clients.theta` | `[N, *P]` |
| when i was last heard | `clients.last_round` | `int32[N]` |
| g_i, last received | message | `[N, *P]`; not kept with `history="none"` |

Source: the supplement of "Preserving Global Performance in Personalized Federated
Learning" (anonymous ICCV submission 6989); its main text is not public. STATED there:
F and its gradient, the quadratic program, the step-size search, the decay, what gamma
does. From the same authors' FedMDFG (AAAI 2023), FedLF (AAAI 2024) and public code:
scaling, rescaling, the absent clients' rows. RECONSTRUCTED here: the protected
direction p_i, its length, the meaning of gamma, and which gradients the tables use.

Deviations, each with its reason: mu is the median and not the mean of the norms, with
which one client that multiplies its gradient makes every step longer; the fairness row
sums scaled rows (the supplement: raw gradients, `fair_from="raw"`), which no single
client owns; where all losses are equal, or one is not positive, it is left out
(`fair_row` in the report); `guard`, as with that row the method can stop where every
client could still improve, contrary to the supplement's claim. Losses and exact
gradients are taken without dropout, or the search would compare noise.

Limits: with one client and no history, gradient descent with steps of constant norm mu;
with a constant eta the iterates hover at a distance of its size, since ds does not
vanish where d does: the decay, or the search, is what makes FedPG settle.
"""

import dataclasses
import warnings
from typing import Annotated, Any, Literal, Self

import jax
import jax.numpy as jnp

from fedjax_pfl import core, local
from fedjax_pfl.algorithms import base, common, common_descent
from fedjax_pfl.algorithms.common_descent import history as histories
from fedjax_pfl.algorithms.common_descent import protection as protections
from fedjax_pfl.algorithms.common_descent.rows import FairFrom, Normalization, Scale
from fedjax_pfl.core import (
    Federation,
    Model,
    byte_counts,
    checks,
    client_rows,
    struct,
)
from fedjax_pfl.round.exchange import Exchange

__all__ = ["FedPG"]

_OF_EPOCHS = ("epochs", "num_steps", "batch_size", "order", "remainder")


def _check_exact(solver: local.SGD) -> None:
    """Refuses fields of a solver that steps along exact gradients do not use."""
    for field in dataclasses.fields(solver):
        value = getattr(solver, field.name)
        if field.name in _OF_EPOCHS and value != field.default:
            raise checks.InputError(
                f"Expected FedPG's local solver without {field.name} for exact"
                f" gradients, got {value!r}; gradient='epochs' uses it."
            )
    name = "weight_decay of FedPG's local solver for exact gradients"
    checks.number(name, solver.weight_decay, at_least=0, at_most=0)


@struct.pytree_dataclass
class FedPgServer:
    """State of the server: the model, and how many clients the last round heard."""

    model: core.Params
    num_heard: jax.Array


@struct.pytree_dataclass
class FedPgClient:
    """State of one client: its personal model, and when it was last heard."""

    theta: core.Params
    last_round: jax.Array


@struct.pytree_dataclass
class FedPG(base.SingleExchange):
    """Common multi-gradient descent with protected personal models.

    Attributes:
      gamma: `[]` in [0, 1], how much of the protection personal models give up.
      guard: `[]` in [0, 1), see `common_descent`; 0 switches it off.
      local: `SGD` without momentum; its learning rate is eta, its decay 0.999, for all
        steps. Its epochs, batches and weight decay belong to `gradient="epochs"`;
        `exact` refuses them.
      gradient: `exact` or `epochs`.
      search: what finds the G-model's step (`Armijo`: S-FedPG), or None for eta_t.
      history: whose last gradients stand in for absent clients: `window`, `last_round`
        or `none`.
      max_history: most of their rows, those heard last first.
      scale: mu is the `median` or the `mean` norm of the members' gradients.
      fair_from: the fairness row sums `scaled` rows or `raw` gradients.
      normalize: `scale` brings members' rows to mu, `none` leaves them.
      fair_row: whether there is a fairness row.
      layerwise: whether every layer has a quadratic program of its own (FedLF).
      protection: `cone`, or `orthogonal` to all others' rows.
      personal_length: `own`, `mean` or `raw`, see `protected_moves`.
      personal: what is evaluated: `stored`, the model of the client's last
        participation, or `refresh`, made of all clients' gradients at the latest w.
    """

    gamma: Any = struct.traced_field(
        default=0.0, at_least=0, at_most=1, search=(0.0, 1.0, False)
    )
    guard: Any = struct.traced_field(
        default=0.01, at_least=0, below=1, unsearched="a guard at stationary points"
    )
    local: core.Solver = local.SGD(decay=0.999)
    gradient: Literal["exact", "epochs"] = "exact"
    search: Annotated[Any, common_descent.Armijo] = None
    history: histories.History = "window"
    max_history: int = struct.static_field(default=200, at_least=1)
    scale: Scale = "median"
    fair_from: FairFrom = "scaled"
    normalize: Normalization = "scale"
    fair_row: bool = struct.static_field(default=True)
    layerwise: bool = struct.static_field(default=False)
    protection: protections.Protection = "cone"
    personal_length: protections.Length = "own"
    personal: Literal["stored", "refresh"] = "stored"

    def __post_init__(self):
        common.check_plain_sgd("FedPG", self.local)
        if self.gradient == "exact":
            _check_exact(self.local)

    @classmethod
    def with_solver(cls, solver: core.Solver) -> Self:
        """Takes the step sizes, for exact gradients."""
        if isinstance(solver, local.SGD):
            names = ("learning_rate", "decay", "per_round")
            rates = {name: getattr(solver, name) for name in names}
            solver = local.SGD(**rates, momentum=solver.momentum)
        return cls(local=solver)

    def check_cohort(self, size: int) -> None:
        """Warns of cohorts of one client without history; before tracing.

        Args:
          size: K, clients per round.
        """
        if size == 1 and self.history == "none":
            warnings.warn(
                "With one client per round and history='none' there is no other loss to"
                " lower: FedPG follows that client's gradient.",
                stacklevel=2,
            )

    aggregates = False  # the direction of common descent is its own rule

    @property
    def reads(self) -> str:
        """All clients' last gradients, if they are used."""
        return "cohort" if self.history == "none" else "all"

    def first(self, params: core.Params):
        """Starts all clients from one network, before any message."""
        server = FedPgServer(model=params, num_heard=jnp.zeros((), jnp.int32))
        never = -jnp.ones((), jnp.int32)
        message = None if self.history == "none" else self.reference(server)
        return server, FedPgClient(theta=params, last_round=never), message

    def reference(self, server: FedPgServer):
        """Returns zeros: messages are gradients."""
        return jax.tree.map(jnp.zeros_like, server.model)

    def _measured(self, view: core.ClientView, w: core.Params, model: Model):
        """Measures ONE client at w: upload, evaluated gradients, personal state."""
        plain, carry = local.DataLoss(model), view.data.personal
        rate = self.local.rate(view.round)
        if self.gradient == "exact":
            # Personal parameters descend by the gradient of the same pass.
            loss, (gradient, slope) = local.full_value_and_gradient(
                local.Joint(plain), (w, carry), None, view.data
            )
            running = local.passed_statistics(plain, w, None, view)
            carry = jax.tree.map(lambda x, g: x - rate * g, carry, slope)
            steps, evaluations = jnp.ones((), jnp.int32), view.data.num_examples
        else:
            loss = local.full_value(plain, w, None, view.data)
            theta, _, info = self.local.solve(view, plain, w, None)
            carry, running = None if carry is None else info.carry, info.statistics
            # g_i = (w - w_i) / eta_t, so that gamma = 1 gives theta_i = w_i.
            gradient = jax.tree.map(lambda a, b: (a - b) / rate, w, theta)
            steps, evaluations = info.num_steps, info.num_examples
        upload = view.upload(gradient, aux={"loss": loss, "steps": steps})
        return upload, evaluations, (carry, running)

    def _rows(
        self,
        gradients: core.Message,
        present: jax.Array,
        losses: jax.Array,
        history: core.Message = None,
        used: jax.Array | None = None,
    ):
        """Returns the rows of the quadratic program, and the fairness objective."""
        fair = common_descent.fairness(losses, present)
        rows = common_descent.make_rows(
            gradients,
            present,
            fair,
            history,
            used,
            scale=self.scale,
            fair_from=self.fair_from,
            normalize=self.normalize,
            fair_row=self.fair_row,
            layerwise=self.layerwise,
        )
        return rows, fair

    def _absent(self, state: core.State, ctx: core.RoundContext):
        """Returns absent clients' last gradients, and a mask of those in use."""
        if self.history == "none" or ctx.cohort.shape[0] == ctx.num_clients:
            return None, None
        rows, used = common_descent.absent(
            state.clients.last_round,
            ctx.cohort,
            ctx.round,
            history=self.history,
            cap=self.max_history,
        )
        return client_rows.take(state.rows["messages"], rows), used

    def _personal(
        self,
        rows: common_descent.Rows,
        w: core.Params,
        rate: core.Scalar,
        mean_norm: jax.Array,
    ):
        """Returns personal models `[K, *P]` about w, and their report."""
        # u_i = (1 - gamma) p_i - gamma q_i, brought to its length.
        moves, report = common_descent.protected_moves(
            rows,
            gamma=self.gamma,
            protection=self.protection,
            length=self.personal_length,
            mean_norm=mean_norm,
        )
        return jax.tree.map(lambda x, m: x[None] + rate * m, w, moves), report

    def _searched(
        self,
        exchange: Exchange,
        server: FedPgServer,
        old: FedPgClient,
        direction: common_descent.Direction,
        rows: common_descent.Rows,
        fair: common_descent.Fairness,
        received: core.Upload,
    ):
        """Searches S-FedPG's step; returns it and its report."""
        plain = local.DataLoss(exchange.model)

        def losses_after(view: core.ClientView, _: Any, shared: core.Tree):
            point, ds, sizes = shared

            def at(size: jax.Array):
                trial = jax.tree.map(lambda x, m: x + size * m, point, ds)
                return local.full_value(plain, trial, None, view.data)

            return jax.vmap(at)(sizes)

        def evaluate(steps: jax.Array):  # the cohort's losses `[K, B]`
            shared = (server.model, direction.vector, steps)
            return exchange.map(losses_after, None, shared, exchange=1)

        present = received.weight > 0
        # A path of many local steps is about as many gradients long.
        scales = jnp.where(rows.scales > 0, rows.scales, 1)
        walked = jnp.maximum(received.aux["steps"], 1)
        slopes = (direction.products / scales)[: rows.num_members] / walked
        heard_again = (old.last_round == exchange.ctx.round - 1).sum()
        result = self.search(
            evaluate,
            rate=self.local.rate(exchange.ctx.round),
            direction=direction,
            slopes=slopes,
            fair_slope=(fair.slopes * slopes).sum(),
            present=present,
            is_fair=rows.mask[-1],
            is_missing=heard_again < server.num_heard,
        )
        return result.step, {
            "step": result.step,
            "rule": result.rule,
            "trials": result.trials,
            "improved": (present & (result.after < result.before)).sum(),
        }

    def _report(
        self,
        rows: common_descent.Rows,
        direction: common_descent.Direction,
        fair: common_descent.Fairness,
        used: jax.Array | None,
    ):
        """Reports values `[]` of the direction and of the fairness row."""
        report = {
            "descent_norm": direction.norm / rows.mu,
            "sigma": direction.sigma,
            "worst_cosine": direction.worst,
            "fairness_weight": direction.weights[:, -1].mean(),
            "guarded": direction.guarded,
            "stationary": direction.stationary,
            "history_rows": jnp.zeros((), jnp.int32) if used is None else used.sum(),
            "loss_angle": jnp.degrees(jnp.arcsin(jnp.minimum(fair.sine, 1))),
        }
        return report | ({"fair_row": rows.mask[-1]} if self.fair_row else {})

    def round(self, state: core.State, exchange: Exchange):
        """Runs both exchanges: direction, step and personal models at the same w."""
        ctx, w = exchange.ctx, state.server.model
        old = exchange.take(state.clients)

        def measure(view: core.ClientView, _: Any, shared: core.Tree):
            return self._measured(view, shared, exchange.model)

        uploads, evaluations, (carry, running) = exchange.map(measure, None, w)
        old_state = state  # holds the absent members' messages of earlier rounds
        state, received = exchange.upload(state, uploads)
        present, losses = received.weight > 0, received.aux["loss"]
        history, used = self._absent(old_state, ctx)
        # q_j of members, absent clients and grad F.
        rows, fair = self._rows(received.message, present, losses, history, used)
        # lam, d and ds = sigma d.
        direction = common_descent.common_descent(rows, guard=self.guard)
        rate = self.local.rate(ctx.round)
        # theta_i = w + eta_t (||g_i|| / ||u_i||) u_i, at the same w as the direction.
        theta, report = self._personal(rows, w, rate, direction.mean_norm)
        new = FedPgClient(
            theta=client_rows.select_rows(present, theta, old.theta),
            last_round=jnp.where(present, ctx.round, old.last_round),
        )
        info = self._report(rows, direction, fair, used)
        step = rate
        if self.search is not None:
            step, search_info = self._searched(
                exchange, state.server, old, direction, rows, fair, received
            )
            info |= search_info
        server = FedPgServer(
            # w^{t+1} = w + step ds.
            model=jax.tree.map(lambda x, m: x + step * m, w, direction.vector),
            num_heard=present.sum().astype(jnp.int32),
        )
        state = dataclasses.replace(
            state, server=server, clients=exchange.put(state.clients, new)
        )
        # Losses travel with the gradients, and with the trials of a search.
        count, size = present.shape[0], client_rows.num_bytes(w)
        bytes_up = exchange.bytes_up(received.message) + client_rows.num_bytes(losses)
        tried = info.get("trials", jnp.zeros((), jnp.int32)) * losses.dtype.itemsize
        values = {
            "gradient_evaluations": evaluations,
            "client_steps": received.aux["steps"],
            "loss": losses,
        }
        if self.search is not None:
            examples = exchange.take(exchange.federation.train.num_examples)
            values["loss_evaluations"] = info["trials"] * examples
        return state, exchange.info(
            core.Report(values=values | report, carry=carry, statistics=running),
            {},
            info,
            bytes_up=byte_counts.words(bytes_up) + byte_counts.words(count * tried),
            # Clients receive w and what theta_i is made with; for the search ds, too.
            bytes_down=count * size * (2 if self.search is None else 3),
        )

    def _all_rows(
        self, key: core.Key, state: core.State, model: Model, federation: Federation
    ):
        """Returns the rows of all clients at w."""

        def of_client(shared: core.Tree, data: core.ClientData):
            client_key = jax.random.fold_in(key, data.client_id)
            view = core.ClientView(key=client_key, round=state.round, data=data)
            upload, *_ = self._measured(view, state.server.model, model)
            return upload.message, upload.aux["loss"]

        # Rows without content: a client needs its examples only.
        blanks = jnp.zeros((federation.num_clients, 0))
        gradients, losses = common.map_everyone(of_client, blanks, federation)
        present = federation.train.num_examples > 0
        return self._rows(gradients, present, losses)[0]

    def before_evaluation(
        self, state: core.State, model: Model, federation: Federation
    ):
        """Refreshes the personal models of all clients, if asked for."""
        if self.personal == "stored":
            return state
        # Draws of an evaluation must not repeat those of a round.
        key = core.stream_key(state.key, core.Stream.EVALUATION, state.round)
        rows = self._all_rows(key, state, model, federation)
        direction = common_descent.common_descent(rows, guard=self.guard)
        rate, w = self.local.rate(state.round), state.server.model
        theta, _ = self._personal(rows, w, rate, direction.mean_norm)
        fresh = FedPgClient(theta=theta, last_round=state.clients.last_round)
        return dataclasses.replace(state, clients=fresh)

    def parameters(self, server: FedPgServer, client: FedPgClient):
        """Returns the personal model theta_i and the global one w."""
        return {"personal": client.theta, "global": server.model}

    def diagnostics(self, state: core.State, model: Model, federation: Federation):
        """Measures how far w is from Pareto stationarity over all clients.

        `pareto_norm`: norm, in multiples of mu, of the shortest convex combination of
        all N clients' scaled gradients; 0 if no direction improves all clients.
        `pareto_norm_fair`: the same with the fairness row, which can be 0 elsewhere.
        """
        rows = self._all_rows(state.key, state, model, federation)
        with_row = common_descent.common_descent(rows, guard=0.0)
        # The fairness row can make the norm vanish elsewhere than at Pareto points.
        without = common_descent.common_descent(
            dataclasses.replace(rows, mask=rows.gradients), guard=0.0
        )
        return {
            "pareto_norm": without.norm / rows.mu,
            "pareto_norm_fair": with_row.norm / rows.mu,
        }

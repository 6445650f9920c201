"""Values of FLAME's theory: Lagrangian, Lyapunov function, residuals, distances."""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import core, local
from fedjax_pfl.algorithms import common
from fedjax_pfl.core import client_rows

if TYPE_CHECKING:
    from fedjax_pfl.algorithms.flame import Flame

__all__ = ["values"]


def values(
    method: "Flame", state: core.State, model: core.Model, federation: core.Federation
) -> dict[str, jax.Array]:
    """Returns values `[]` by name, as `Flame.diagnostics` defines them."""
    w, rows = state.server, state.clients
    plain = local.DataLoss(model)

    half_squared = common.half_squared_distance

    def of_client(client: core.ClientState, data: core.ClientData):
        loss, gradient = local.full_value_and_gradient(plain, client.theta, None, data)
        gap = optax.tree.sub(client.theta, w)
        # Stationarity in theta_i of the problem, not of the split one.
        residual = optax.tree.add_scale(gradient, method.lam, gap)
        return {
            "loss": loss,
            "residual": optax.tree.norm(residual, squared=True),
            "to_w": half_squared(client.theta, w),
            "to_w_local": half_squared(client.theta, client.w_local),
            "copy": half_squared(client.w_local, w),
            "dual": optax.tree.vdot(client.p, optax.tree.sub(client.w_local, w)),
        }

    parts = common.map_everyone(of_client, rows, federation)
    alpha = rows.alpha
    share = method.share(alpha, rows.ratio)
    # rho = kappa_i lam alpha_i; at share 0, that is lam = 0, only a given rho is left.
    rho = method.lam * alpha * (1 - share) / jnp.where(share > 0, share, 1)
    rho = jnp.where(share > 0, rho, 0 if method.rho is None else method.rho)
    lagrangian = (
        # alpha_i (f_i + lam/2 ||theta_i - w_i||^2)
        # + <pi_i, w_i - w> + rho/2 ||w_i - w||^2.
        alpha * (parts["loss"] + method.lam * parts["to_w_local"])
        + rho * parts["dual"]
        + rho * parts["copy"]
    ).sum()
    objective = (alpha * (parts["loss"] + method.lam * parts["to_w"])).sum()
    lyapunov = lagrangian
    if rows.eps is not None:
        # Ltil = L + sum iota_i eps_i, iota_i = ups / (4 s_i (1 - ups)).
        s = alpha * method.lam / 4
        iota = method.eps_decay / (4 * jnp.where(s > 0, s, 1) * (1 - method.eps_decay))
        lyapunov = lagrangian + jnp.where(s > 0, iota * rows.eps, 0).sum()
    mean = client_rows.weighted_sum(rows.theta, alpha)
    # pi_i = rho p_i.
    duals = client_rows.weighted_sum(rows.p, rho)
    return {
        "lagrangian": lagrangian,
        "lyapunov": lyapunov,
        "objective": objective,
        "residual_theta": jnp.sqrt(parts["residual"].max()),
        "residual_w": optax.tree.norm(optax.tree.sub(mean, w)),
        "dual_sum": optax.tree.norm(duals),
        "consensus_distance": jnp.sqrt(2 * parts["copy"].mean()),
    }

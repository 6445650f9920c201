"""MyMethod: FedAvg whose server goes a part of the way to the mean.

Problem: `min_w sum_i (n_i / n) f_i(w)`. Round t: the members of the cohort S start from
`w^t`, train to `theta_i`, and keep it as their personal model; then

    w^{t+1} = w^t + step (sum_S n_i theta_i / sum_S n_i - w^t).          (1)

| symbol | field | shape |
|---|---|---|
| w | `server` | `[*P]` |
| theta_i | message, and `clients` | `[*P]` per client |
| step | `step` | `[]` |

Limits: `step = 1` is FedAvg, `step = 0` leaves the server where it is.
"""

from typing import Any

import jax

import fedjax_pfl as fp


@fp.pytree_dataclass
class MyMethod(fp.SingleExchange):
    """Say in one sentence what it does; the module's docstring has the equations.

    Attributes:
      step: share of the way to the mean.
      local: local solver; commands put that of the comparison in its place.
    """

    # Fields are hyperparameters, each with a default. Numbers are traced: grids sweep
    # them in one compiled program. What fixes a shape, a loop length or which code runs
    # is static: `num_steps: int = fp.static_field(default=5, at_least=1)`, or one of
    # some names: `mode: Literal["fast", "exact"] = "fast"`.
    step: float = fp.traced_field(default=0.5, at_least=0)
    local: Any = fp.SGD(learning_rate=0.1)

    def init(self, key, model, population, data):
        """First (server state, state of ONE client, its first message)."""
        # None where the method has none. The server's state must not depend on the
        # client; `population` has the numbers of all clients and of all examples.
        params = model.init(key)
        return params, params, None

    # What clients get is the server's state. For another one for each client write
    # def down(self, ctx, server, clients, messages) -> fp.Downlink.

    def client_update(self, view, down, client, model):
        """Work of ONE client: (its new state, what it sends, numbers to report)."""
        # No loop over clients. `view` has this client's key, round, budget and data;
        # never read view.data.x by hand: padded slots hold anything.
        loss = fp.local.DataLoss(model)
        theta, _, info = self.local.solve(view, loss, down.shared)
        # The message weighs as much as there are examples; a weight of 0 drops it.
        return theta, view.upload(theta), info.report()

    def server_update(self, ctx, server, aggregate, uploads):
        """New server state; `aggregate` is the weighted mean of the messages."""
        return jax.tree.map(
            lambda w, mean: w + self.step * (mean - w), server, aggregate
        )  # (1)

    def parameters(self, server, client):
        """Networks that predict for ONE client, by the names that results have."""
        # A method that adapts first writes def predictors(self, view, server, client,
        # model), which returns functions x -> outputs.
        return {"global": server, "personal": client}

"""Roles and adapters of models, from `model.roles.*` and `model.adapters.*`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import fedjax_pfl as fp
from fedjax_pfl import core
from fedjax_pfl.core import checks

__all__ = ["ADAPTERS", "ROLES", "Settings", "known", "wrap"]

Settings = Mapping[str, tuple[Any, ...]]
"""Values of settings by dotted name."""
ROLES, ADAPTERS = "model.roles", "model.adapters"
_NONE = (None, "none")


def known() -> list[str]:
    """Returns the names of settings of roles and adapters."""
    kinds = {ROLES: fp.ParameterRoles, ADAPTERS: fp.models.LowRank}
    return [
        f"{prefix}.{field.name}"
        for prefix, kind in kinds.items()
        for field in dataclasses.fields(kind)
        if field.name != "model"
    ]


def wrap(model: "core.Model", parsed: Settings) -> "core.Model":
    """Adds the roles and adapters of settings to a model, or removes them."""
    from fedjax_pfl.models import low_rank  # imports JAX

    for name in (ROLES, ADAPTERS):
        if name in parsed and not all(value in _NONE for value in parsed[name]):
            raise checks.InputError(
                f"Expected one of the fields of {name}, such as"
                f" {next(n for n in known() if n.startswith(name))}, or {name}=none,"
                f" got {parsed[name][0]!r}."
            )
    roles = model if isinstance(model, fp.ParameterRoles) else None
    inner = model if roles is None else roles.model
    if ADAPTERS in parsed and isinstance(inner, low_rank.LowRank):
        inner, has_roles = inner.model, ROLES in parsed
        if roles is not None and roles.trained == low_rank.ADAPTERS and not has_roles:
            # Roles that trained only the adapters would leave no parameters to train.
            roles = dataclasses.replace(roles, trained=None)
    elif _names(parsed, ADAPTERS) and not isinstance(inner, low_rank.LowRank):
        # With adapters all other parameters are frozen, unless roles say otherwise.
        inner = low_rank.LowRank(model=inner, targets=_targets(parsed))
        if roles is None:
            roles = fp.ParameterRoles(inner)
        if roles.frozen is None and roles.trained is None:
            roles = dataclasses.replace(roles, trained=low_rank.ADAPTERS)
    if ROLES in parsed:
        return inner
    if _names(parsed, ROLES) and roles is None:
        roles = fp.ParameterRoles(inner)
    return inner if roles is None else dataclasses.replace(roles, model=inner)


def _names(parsed: Settings, prefix: str) -> bool:
    """Returns whether a setting below a name is given."""
    return any(name.startswith(f"{prefix}.") for name in parsed)


def _targets(parsed: Settings) -> Any:
    """Returns the targets of new adapters."""
    name = f"{ADAPTERS}.targets"
    if name not in parsed:
        raise checks.InputError(
            f"Expected --set {name}=PATTERN, the kernels that get adapters, together"
            f" with {min(n for n in parsed if n.startswith(ADAPTERS))}."
        )
    return parsed[name][0]

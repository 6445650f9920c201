"""Wrong fields of every rule get one sentence."""

import pytest

from fedjax_pfl import aggregators
from fedjax_pfl.core import checks

WRONG = {
    aggregators.GeometricMedian: [
        ({"rho": 0.0}, "rho .* above 0, got 0.0"),
        ({"tolerance": -1.0}, "tolerance"),
        ({"method": "weizfeld"}, "did you mean 'weiszfeld'"),
        ({"weighting": "sizes"}, "allowed: examples, uniform"),
        ({"max_iterations": 0}, "max_iterations"),
        ({"rho": 1.0, "rho_quantile": 0.5}, "rho or rho_quantile, got both"),
        ({"rho_quantile": 1.0}, "rho_quantile .* below 1, got 1.0"),
        ({"start": "zero"}, "allowed: mean, reference"),
        ({"acceleration": -1}, "acceleration"),
        ({"curvature": 1}, "curvature"),
    ],
    aggregators.CoordinateMedian: [
        ({"rho": 1.0, "rho_quantile": 0.5}, "rho=1.0, rho_quantile=0.5"),
        ({"rho": 0.0}, "rho .* above 0, got 0.0"),
        ({"weighting": "sizes"}, "allowed: examples, uniform"),
    ],
    aggregators.Krum: [
        ({"num_malicious": -1}, "num_malicious"),
        ({"num_selected": 0}, "num_selected"),
        ({"squared": 1}, "squared"),
        ({"num_malicious": 1, "malicious_fraction": 0.1}, "at most one of"),
        ({"guarantee": None}, "guarantee"),
    ],
    aggregators.MeaMed: [
        ({"malicious_fraction": 1.5}, "malicious_fraction .* at most 1"),
    ],
    aggregators.ModularMean: [
        ({"bits": 1}, "bits .* at least 2"),
        ({"step": 0.0}, "step .* above 0, got 0.0"),
    ],
    aggregators.NormClipping: [
        ({"max_norm": 1.0, "num_malicious": 1}, "max_norm=1.0"),
    ],
    aggregators.CenteredClipping: [
        ({"tau": 0.0}, "tau .* above 0"),
        ({"num_iterations": 0}, "num_iterations"),
    ],
    aggregators.Bulyan: [
        ({"one_shot": 1}, "one_shot"),
    ],
    aggregators.ServerMomentum: [
        ({"momentum": 1.0}, "momentum .* below 1, got 1.0"),
        ({"learning_rate": 0.0}, "learning_rate .* above 0"),
    ],
    aggregators.ServerAdam: [
        ({"b1": -0.1}, "b1 .* at least 0"),
        ({"b2": 1.0}, "b2 .* below 1"),
        ({"eps": 0.0}, "eps .* above 0"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "fields", "match"),
    [(kind, *row) for kind, rows in WRONG.items() for row in rows],
)
def test_wrong_fields_are_named(kind, fields, match):
    with pytest.raises(checks.InputError, match=match):
        kind(**fields)

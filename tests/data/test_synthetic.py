import numpy as np
import pytest
from scipy import optimize

from fedjax_pfl import data
from fedjax_pfl.data import sources, synthetic
from tests.data import samples


def load(source, seed=0, num_clients=6):
    return source.load(data_dir=None, seed=seed, num_clients=num_clients)


KINDS = [k for k in sources.DATASETS.values() if issubclass(k, synthetic.Generated)]


@pytest.mark.parametrize("kind", KINDS)
def test_generated_sets_are_a_function_of_the_seed(kind):
    dataset = load(kind())
    synthetic._generate.cache_clear()
    again, other = load(kind()), load(kind(), seed=1)
    for name in ("x", "y", "client"):
        np.testing.assert_array_equal(getattr(dataset, name), getattr(again, name))
    for name, values in dataset.truth.items():
        np.testing.assert_array_equal(values, again.truth[name])
    assert load(kind()) is again and not np.array_equal(dataset.x, other.x)
    counts = np.bincount(dataset.client)
    wanted = getattr(kind(), "examples_per_client", counts)
    assert (counts == wanted).all() and len(counts) == 6
    federation = data.FederationSpec(kind.name, "by_client", num_clients=6).build()
    assert federation.input_shape == dataset.x.shape[1:]
    assert federation.num_classes == dataset.num_classes


@pytest.mark.parametrize("noise", [0.0, 0.7])
def test_quadratic_minimizers(noise):
    dataset = load(synthetic.Quadratic(dim=4, noise=noise, spread=2.0))
    for client, minimizer in enumerate(dataset.truth["minimizers"]):
        points = dataset.x[dataset.client == client].astype(float)
        found = optimize.minimize(
            lambda theta, points=points: 0.5 * ((theta - points) ** 2).sum(),
            np.zeros(4),
        ).x
        np.testing.assert_allclose(minimizer, found, atol=1e-5)
    if noise == 0:
        np.testing.assert_allclose(
            dataset.truth["minimizers"], dataset.truth["parameters"], rtol=1e-6
        )
    np.testing.assert_array_equal(dataset.x, dataset.y)


def test_quadratic_spread_and_noise_are_standard_deviations():
    source = synthetic.Quadratic(dim=50, examples_per_client=40, spread=3.0, noise=0.5)
    dataset = load(source, num_clients=40)
    targets = dataset.truth["parameters"]
    residuals = dataset.x - targets[dataset.client]
    # A standard deviation of n draws has relative standard error 1 / sqrt(2 n).
    assert abs(targets.std() / 3 - 1) < 5 / np.sqrt(2 * targets.size)
    assert abs(residuals.std() / 0.5 - 1) < 5 / np.sqrt(2 * residuals.size)


@pytest.mark.parametrize("orthonormal", [True, False])
def test_linear_regression_minimizers_are_least_squares(orthonormal):
    source = synthetic.LinearRegression(
        dim=3, examples_per_client=20, curvature=0.25, orthonormal=orthonormal
    )
    dataset = load(source)
    for client in range(6):
        mine = dataset.client == client
        x, y = dataset.x[mine].astype(float), dataset.y[mine].astype(float)
        expected = np.linalg.lstsq(x, y, rcond=None)[0]
        np.testing.assert_allclose(
            dataset.truth["minimizers"][client], expected, rtol=1e-9, atol=1e-12
        )
        hessian = dataset.truth["hessians"][client]
        np.testing.assert_allclose(hessian, x.T @ x / 20, rtol=1e-12)
        is_multiple = np.allclose(hessian, 0.25 * np.eye(3), atol=1e-6)  # float32
        assert is_multiple == orthonormal


def test_linear_regression_noise_and_truth():
    exact = load(synthetic.LinearRegression(sigma=0.0))
    np.testing.assert_allclose(
        exact.truth["minimizers"], exact.truth["parameters"], atol=1e-6
    )
    source = synthetic.LinearRegression(dim=2, examples_per_client=400, sigma=0.3)
    noisy = load(source, num_clients=50)
    # Section 3.1: an estimate is N(t_i, sigma^2 / (b n) I); 100 coordinates.
    error = noisy.truth["minimizers"] - noisy.truth["parameters"]
    assert abs(error.std() * np.sqrt(400) / 0.3 - 1) < 5 / np.sqrt(2 * error.size)


def test_gaussian_classes_surround_their_means():
    source = synthetic.GaussianClasses(
        num_classes=3, dim=2, examples_per_client=3000, shift=2.0
    )
    dataset = load(source, num_clients=4)
    means = dataset.truth["means"]
    assert means.shape == (4, 3, 2) and dataset.num_classes == 3
    for client in range(4):
        for label in range(3):
            mine = (dataset.client == client) & (dataset.y == label)
            assert abs(mine.sum() - 1000) < 5 * np.sqrt(3000 * 2 / 9)
            error = dataset.x[mine].mean(axis=0) - means[client, label]
            assert np.abs(error).max() < 5 / np.sqrt(mine.sum())
    # A shift moves all classes of a client together.
    moves = means - means[:1]
    np.testing.assert_allclose(moves, moves[:, :1].repeat(3, axis=1), atol=1e-12)
    assert np.abs(moves[1:]).min() > 0
    unshifted = load(synthetic.GaussianClasses(shift=0.0)).truth["means"]
    assert (unshifted == unshifted[0]).all()


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("quadratic", {"dim": 0}, "dim to be a whole number of at least 1, got 0"),
        ("quadratic", {"examples_per_client": 1.5}, "examples_per_client .* got 1.5"),
        ("quadratic", {"spread": -1.0}, "spread .* at least 0, got -1.0"),
        ("quadratic", {"noise": float("nan")}, "noise .* got nan"),
        ("quadratic", {"spread": 1e300}, "fit into 32 bits"),
        ("linear_regression", {"dim": 9, "examples_per_client": 8}, "at least 9"),
        ("linear_regression", {"curvature": 0.0}, "curvature .* got 0.0"),
        ("linear_regression", {"sigma": -0.1}, "sigma .* got -0.1"),
        ("linear_regression", {"orthonormal": 1}, "orthonormal .* got 1"),
        ("gaussian_classes", {"num_classes": 0}, "num_classes .* got 0"),
        ("gaussian_classes", {"separation": "far"}, "separation .* got 'far'"),
    ],
)
def test_wrong_options_get_a_sentence(name, options, sentence):
    samples.refusal(sources.load_dataset, name, **options, match=sentence)

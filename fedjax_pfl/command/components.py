"""Settings that are components, readable without JAX and NumPy."""

__all__ = ["COMPONENTS"]

COMPONENTS = {  # setting -> registry, by room, and whether there may be none
    "algorithm": ("algorithms.ALGORITHMS", False),
    "algorithm.local": ("algorithms.LOCAL_SOLVERS", False),
    "algorithm.fine_tune": ("algorithms.LOCAL_SOLVERS", True),
    "algorithm.head_local": ("algorithms.LOCAL_SOLVERS", True),
    "algorithm.personal": ("algorithms.LOCAL_SOLVERS", True),
    "algorithm.inner": ("algorithms.LOCAL_SOLVERS", True),
    "algorithm.phi": ("algorithms.PHIS", False),
    "algorithm.search": ("algorithms.STEP_SEARCHES", True),
    "aggregator": ("algorithms.AGGREGATORS", True),
    "server_optimizer": ("algorithms.SERVER_OPTIMIZERS", True),
    "aggregator.rule": ("algorithms.AGGREGATORS", False),
    "attack": ("algorithms.ATTACKS", True),
    "transforms": ("algorithms.TRANSFORMS", True),
    "participation": ("algorithms.PARTICIPATIONS", False),
    "work": ("algorithms.WORK", False),
    "model": ("algorithms.MODELS", False),
    "federation.dataset": ("data.DATASETS", False),
    "federation.partition": ("data.PARTITIONS", False),
    "federation.market": ("portfolio.MARKETS", False),
    "federation.label_poisoning": ("data.LABEL_POISONINGS", True),
    "federation.feature_noise": ("data.FEATURE_NOISES", True),
}

"""Meanings of the columns of a benchmark's pages, and the origin of their rows."""

from fedjax_pfl.benchmark import finished, tables, training

__all__ = ["OUTDATED", "origin", "terms"]

OUTDATED = (
    "Trained before ranges were widened and budgets counted gradients; to be trained"
    " again."
)
_NOT_RECORDED = "not recorded"


def terms(metric: str) -> tuple[tuple[str, str], ...]:
    """Returns heads of columns with their meanings."""
    # Numbers come from the code that uses them.
    devices, target = training.DEVICES, finished.TARGET
    return (
        (
            "kind",
            "personal method; global model, one for all clients; reference; or copy of"
            " Local, which equals Local in every seed",
        ),
        (
            f"{metric}, or a data set",
            "mean over clients of their own test data in the last round, in percent,"
            " ± standard deviation over seeds",
        ),
        ("•", "the best method, or one that is not told from it"),
        (
            "†",
            "not converged, so not ranked: by a line through the last three tenths, the"
            f" validation {metric} still gained over half a point in a tenth of the"
            " rounds",
        ),
        ("–", "not trained, diverged in a seed, or nothing to show"),
        ("mean", "over the data sets that count"),
        (
            "group",
            "methods that paired tests at five percent, corrected by Holm's method, do"
            " not tell from the first of them",
        ),
        ("worst 10 %", "of the clients: their mean"),
        (
            "hybrid",
            "with the global or the personal model of each client, whichever is better"
            " on its validation examples",
        ),
        (
            "control",
            "rows called start: numbers in the middle of their ranges, where learning"
            " starts",
        ),
        ("worse than, better than", "share of clients for whom it is so, in percent"),
        (
            "unseen clients",
            "never trained; they adapt the global model by local epochs, or by the"
            " method's own rule where it has one",
        ),
        (
            "minus …, below the best",
            "difference in points, paired by seed, with a 95 % interval for itself",
        ),
        ("p", "of the difference before it, corrected by Holm's method"),
        ("MB", "megabytes sent by and to all clients in one training"),
        ("gradients", "of single examples, summed over clients"),
        (
            "virtual seconds",
            "every round waits for its slowest client; devices compute"
            f" {devices.examples_per_second:g} gradients of examples, send"
            f" {devices.upload / 1e3:g} and receive {devices.download / 1e3:g} kB per"
            " second in the median, and logarithms of speeds spread by"
            f" {devices.spread:g} in what they compute and {devices.bandwidth_spread:g}"
            " in what they send",
        ),
        (
            "reached",
            f"seeds in which the validation {metric} was once what {target}'s with the"
            " same seed was in the last round",
        ),
        (
            "… to it",
            "spent until the first evaluation that found it so, mean over these seeds;"
            " at once: already at the first evaluation of a trained model in all of"
            " them; ≤: in some",
        ),
        (
            "best setting",
            f"that of the best validation {metric}; least or largest tried: no other"
            " setting was beyond it, so that the range may be too narrow",
        ),
        ("fields searched", "number of its fields"),
        ("tried", "settings that were compared"),
        (
            "median setting",
            f"points of validation {metric} below the best one at the first rung of the"
            " search, where all have had the same few rounds",
        ),
        ("failed", "share of settings with a value that is not finite"),
        ("repeat with", "option that makes the command repeat this row"),
    )


def origin(bench: tables.Tables) -> str:
    """Returns the sentence on code, machines and dates of the rows."""
    rows, parts = bench.searches, []
    if (rows[list(finished.ORIGIN)] == "").all(axis=None):
        names = ", ".join(finished.ORIGIN[:-1])
        return f"Origin of the rows: {names} and {finished.ORIGIN[-1]} {_NOT_RECORDED}."
    for name in finished.ORIGIN:
        values = sorted(set(rows[name]) - {""})
        if name == "date" and len(values) > 1:
            values = [f"{values[0]} to {values[-1]}"]
        count = int((rows[name] == "").sum())
        if count:
            of_all = f" for {count} of {len(rows)} rows" if count < len(rows) else ""
            values.append(f"{_NOT_RECORDED}{of_all}")
        parts.append(f"{name} {'; '.join(values)}")
    return f"Origin of the rows: {', '.join(parts)}."

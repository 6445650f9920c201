"""Histories of clients, as a page holds them."""

import base64
import dataclasses
import json

import numpy as np
import pytest

from fedjax_pfl.figures import clients
from fedjax_pfl.report import histories as packing
from tests import histories


def unpacked(record):
    """Values of a record, NaN where there is none."""
    numbers = np.frombuffer(base64.b64decode(record["values"]), "<u2")
    numbers = numbers.reshape(len(record["clients"]), len(record["rounds"]))
    values = record["low"] + numbers / 65534 * (record["high"] - record["low"])
    return np.where(numbers == 65535, np.nan, values)


def boxes_of(made):
    shown = clients.values_of_clients(histories.make_result(made))
    assert shown is not None
    return shown


def test_histories_are_those_of_the_clients():
    made = histories.make_history()
    evaluated = made.evaluated.copy()
    evaluated[:, 1, :, 3] = False
    made = dataclasses.replace(made, evaluated=evaluated)
    records = json.loads(packing.packed(boxes_of(made)))
    assert [r["label"].rpartition(", ")[2] for r in records][:1] == ["personal"]
    values = unpacked(records[0])
    assert records[0]["rounds"] == [0, 5, 10]
    wanted = made.metrics["accuracy"][:, :, 0, 0].copy()
    wanted[:, 1, 3] = np.nan
    for row, client, seed in zip(
        values, records[0]["clients"], records[0]["seeds"], strict=True
    ):
        np.testing.assert_allclose(row, wanted[seed, :, int(client)], atol=2e-5)


@pytest.mark.parametrize("bound, rounds", [(1000, 3), (320, 2), (100, 0)])
def test_rounds_and_then_histories_are_left_out_of_large_pages(
    monkeypatch, bound, rounds
):
    monkeypatch.setattr(packing, "MAX_VALUES", bound)
    boxes = boxes_of(histories.make_history())
    points = sum(len(box.points) for box in boxes.marks)
    text = packing.packed(boxes)
    if not rounds:
        assert text == ""
        return
    records = json.loads(text)
    assert sum(unpacked(record).size for record in records) <= bound
    assert all(len(record["rounds"]) == rounds for record in records)
    assert records[0]["rounds"][:: rounds - 1] == [0, 10]
    assert points * rounds <= bound

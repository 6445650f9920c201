"""Markets from files: a user's own table, and the known stocks."""

import gzip
import itertools
import os
import pathlib

import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import portfolio
from fedjax_pfl.data.readers import prices
from tests.data import samples, test_sources_real

CLOSES = {  # by day of January 2020; None where the asset has no row
    "A": [10.0, 11.0, 12.0, 12.5],
    "B": [None, 5.0, None, 6.0],
    "C": [None, None, 2.0, None],
}
DAYS = ("2020-01-02", "2020-01-03", "2020-01-06", "2020-01-07")


def table(header="date,ticker,close", extra=lambda close: ""):
    lines = [header]
    for (day, date), ticker in itertools.product(enumerate(DAYS), CLOSES):
        close = CLOSES[ticker][day]
        if close is not None:
            lines.append(f"{date},{ticker},{close}{extra(close)}")
    return "\n".join(lines) + "\n"


def loaded(tmp_path, content, features=1, name="my.csv"):
    path = tmp_path / name
    data = content.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return portfolio.PriceFile(path=str(path)).load(data_dir=None, features=features)


@pytest.mark.parametrize("name", ["my.csv", "my.csv.gz"])
def test_gaps_are_filled(tmp_path, name):
    market = loaded(tmp_path, table(), name=name)
    assert market.name == "my" and market.tickers == ("A", "B", "C")
    assert [str(date) for date in market.dates] == list(DAYS)
    np.testing.assert_array_equal(market.listed, [0, 1, 2])
    expected = [[10, 5, 2], [11, 5, 2], [12, 5, 2], [12.5, 6, 2]]
    np.testing.assert_array_equal(market.prices[..., 0], expected)


def test_highs_and_lows_are_in_units_of_the_close_that_counts(tmp_path):
    def extra(close):
        return f",{close / 2},{close * 1.1},{close * 0.9}"

    content = table("date,ticker,close,adj_close,high,low", extra)
    market = loaded(tmp_path, content, features=3)
    close, high, low = np.moveaxis(market.prices, -1, 0)
    np.testing.assert_array_equal(close[:, 0], [5, 5.5, 6, 6.25])
    is_given = np.array([[c is not None for c in own] for own in CLOSES.values()]).T
    np.testing.assert_allclose(high, np.where(is_given, 1.1, 1) * close)
    np.testing.assert_allclose(low, np.where(is_given, 0.9, 1) * close)
    alone = loaded(tmp_path, content)
    np.testing.assert_array_equal(alone.prices[..., 0], close)


def test_adjusted_highs_need_no_other_close(tmp_path):
    content = "date,ticker,adj_close,low,high\n2020-01-02,A,2,1,3\n"
    market = loaded(tmp_path, content, features=3)
    np.testing.assert_array_equal(market.prices, [[[2, 3, 1]]])


def test_files_are_read_once_until_they_change(tmp_path):
    first = loaded(tmp_path, table())
    source = portfolio.PriceFile(path=str(tmp_path / "my.csv"))
    assert source.load(data_dir=None, features=1) is first
    changed = table().replace("12.5", "13.5")
    (tmp_path / "my.csv").write_text(changed)
    os.utime(tmp_path / "my.csv", ns=(1, 1))
    assert source.load(data_dir=None, features=1).prices[-1, 0, 0] == 13.5


@pytest.mark.parametrize(
    ("content", "features", "sentence"),
    [
        (table().replace("12.5", "0"), 1, "Line .* has the price '0', expected a pos"),
        (table(), 3, "has the columns date, ticker, close, expected high and low"),
        (
            "date,ticker,close,high,low\n2020-01-02,A,2,1.9,1\n",
            3,
            "Line 2 of .* has the close 2, which is not between its low 1 and its",
        ),
        ("date,ticker,close,high,low\n2020-01-02,A,2,x,1\n", 3, "has the price 'x'"),
    ],
)
def test_damaged_tables_get_one_sentence(tmp_path, content, features, sentence):
    samples.refusal(loaded, tmp_path, content, features, match=sentence)


def test_columns_that_are_not_asked_for_are_not_read():
    content = b"date,ticker,close,high,low\n2020-01-02,A,2,x,1\n"
    found = prices.parse_prices(content, pathlib.Path("t.csv"))
    assert found.values.tolist() == [[[2.0]]]


def written(directory, days=40, assets=4):
    """A file of business days with prices that do not change."""
    dates = np.busday_offset("2020-01-01", np.arange(days), roll="forward")
    rows = [f"{d},T{a},{a + 1}" for d, a in itertools.product(dates, range(assets))]
    directory.mkdir(exist_ok=True)
    path = directory / "own.csv"
    path.write_text("\n".join(["date,ticker,close", *rows]) + "\n")
    return path


def test_a_path_is_a_market_and_a_data_directory_has_stocks(tmp_path, monkeypatch):
    path = written(tmp_path / "stocks")
    small = {"num_clients": 2, "assets_per_client": 3, "window": 5, "test_days": 4}
    from_path = portfolio.PortfolioSpec(str(path), years=0, **small).build()
    known = portfolio.PortfolioSpec("stocks", years=0, data_dir=str(tmp_path), **small)
    federation = known.build()
    assert from_path.name == federation.name == "own"
    np.testing.assert_array_equal(federation.train.y, from_path.train.y)
    assert federation.test.constants.days == 40
    np.testing.assert_array_equal(federation.train.y, 1)
    with pytest.raises(fp.InputError, match="pass --data-dir"):
        portfolio.PortfolioSpec("stocks").build()
    with pytest.raises(fp.InputError, match="cannot be read"):
        portfolio.PortfolioSpec(str(tmp_path / "other.csv")).build()
    written(tmp_path / "stocks").rename(tmp_path / "stocks" / "second.csv")
    written(tmp_path / "stocks")
    samples.refusal(known.build, match="needs one .csv file")


def test_the_known_stocks():
    test_sources_real.folder("stocks")
    directory = str(test_sources_real.SHARED)
    market = portfolio.StockPrices().load(data_dir=directory, features=1)
    assert market.prices.shape == (3523, 50, 1)
    late = {
        ticker: str(market.dates[day])
        for ticker, day in zip(market.tickers, market.listed, strict=True)
        if day > 0
    }
    assert late == {  # when these companies went public
        "MA": "2006-05-25",
        "WU": "2006-10-02",
        "TEL": "2007-06-14",
        "AVGO": "2009-08-06",
        "CHTR": "2010-01-05",
        "FB": "2012-05-18",
    }
    spec = portfolio.PortfolioSpec(
        "stocks", num_clients=5, years=1, test_from="2019-01-01", data_dir=directory
    )
    federation = spec.build()
    np.testing.assert_array_equal(federation.train.num_examples, 3271 - 30)
    np.testing.assert_array_equal(federation.test.num_examples, 252)

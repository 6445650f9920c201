"""The page of a report in a real browser; skipped where there is none.

`FEDJAX_PFL_BROWSER` names the program of a Chrome or Chromium; else playwright's own
one is taken, or one that is installed.
"""

import os
import pathlib
import shutil

import pytest

from fedjax_pfl.report import page
from tests import histories
from tests.report import reports

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: see CONTRIBUTING.md"
)
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(20, 23, 28)"


@pytest.fixture(scope="module")
def browser():
    """A browser without a window."""
    with playwright.sync_playwright() as started:
        own = started.chromium.executable_path
        given = os.environ.get("FEDJAX_PFL_BROWSER")
        installed = (path for name in NAMES if (path := shutil.which(name)))
        program = given or (own if os.path.exists(own) else next(installed, None))
        if program is None:
            pytest.skip("there is no browser: see CONTRIBUTING.md")
        arguments = ["--no-sandbox", "--headless=shell", "--disable-gpu", "--no-zygote"]
        found = started.chromium.launch(executable_path=program, args=arguments)
        yield found
        found.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """The page of a grid of two methods."""
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(reports.grid_page(), "utf-8")
    return file


@pytest.fixture
def opened(browser, file):
    """Opens a page; at the end it must have said and asked for nothing."""
    contexts, said, asked = [], [], []

    def open_file(path=file, **options):
        contexts.append(browser.new_context(**options))
        shown = contexts[-1].new_page()
        shown.set_default_timeout(5000)
        shown.on("console", lambda message: said.append(message.text))
        shown.on("pageerror", lambda error: said.append(str(error)))
        shown.on("request", lambda request: asked.append(request.url))
        shown.goto(pathlib.Path(path).as_uri())
        return shown

    yield open_file
    for context in contexts:
        context.close()
    assert said == []
    assert [
        url for url in asked if not url.startswith(("file:", "data:", "blob:"))
    ] == []


def background(shown):
    return shown.evaluate("getComputedStyle(document.body).backgroundColor")


def visible(shown, chart):
    """Keys of the series that a chart shows."""
    return shown.evaluate(
        """chart => [...new Set([...document.querySelectorAll(
          `#${chart} .chart [data-key]:not(.hidden)`)].map(
            part => part.dataset.key))]""",
        chart,
    )


def test_all_charts_are_drawn_and_names_hide_what_they_name(opened):
    shown = opened()
    counts = shown.evaluate(
        """[...document.querySelectorAll(".chart")].map(
          place => place.querySelectorAll("svg path").length)"""
    )
    assert len(counts) == 6 and all(counts)
    before = visible(shown, "learning_curves")
    assert "FedAvg, global" in before and len(before) == 4
    name = shown.locator("#learning_curves [data-name]", has_text="FedAvg")
    name.click()
    assert name.get_attribute("aria-pressed") == "false"
    assert "FedAvg, global" not in visible(shown, "learning_curves")
    assert "FedAvg, global" in visible(shown, "clients")  # other charts keep it
    name.press("Enter")
    assert visible(shown, "learning_curves") == before


def test_a_method_is_hidden_everywhere(opened):
    shown = opened()
    shown.locator("#methods button", has_text="FedAvg").click()
    for chart in ("learning_curves", "clients", "fairness", "sweep"):
        left = visible(shown, chart)
        assert left and not [key for key in left if "FedAvg" in key], chart
    row = shown.locator("#headline tr[data-method=FedAvg]")
    assert row.count() == 1 and not row.is_visible()
    shown.locator("#methods button", has_text="FedAvg").click()
    assert row.is_visible()


def test_another_reference_shows_other_differences(opened):
    shown = opened()
    select = shown.locator("#headline select")
    cells = shown.locator("#headline td.difference")
    comparison = reports.grid_content().headline[0].environments[0]
    for number in (0, 3):
        select.select_option(str(number))
        expected = [
            "reference" if d is None else d.text
            for row in comparison.rows
            for k, d in enumerate(row.differences)
            if k == number
        ]
        assert cells.all_text_contents() == expected


def test_light_and_dark_follow_the_system_and_the_button(opened):
    ink = "getComputedStyle(document.querySelector('.chart text')).fill"
    shown = opened(color_scheme="dark")
    assert background(shown) == DARK
    dark = shown.evaluate(ink)
    shown.locator("#learning_curves [data-name]").first.click()
    hidden = visible(shown, "learning_curves")
    shown.locator("#theme").click()
    assert background(shown) == LIGHT
    assert shown.evaluate(ink) != dark
    assert visible(shown, "learning_curves") == hidden  # what was hidden stays
    light = opened(color_scheme="light")
    assert background(light) == LIGHT
    light.emulate_media(color_scheme="dark")
    light.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    assert light.evaluate(ink) == dark


@pytest.mark.parametrize("width", [320, 375, 768])
def test_nothing_is_wider_than_the_screen(opened, width):
    shown = opened(viewport={"width": width, "height": 800}, has_touch=True)
    assert shown.evaluate("document.documentElement.scrollWidth") <= width


def test_paper_is_light_and_as_wide_as_it_is(opened, tmp_path):
    shown = opened(color_scheme="dark")
    shown.evaluate(
        """addEventListener("beforeprint", () => {
          window.printed = [document.documentElement.dataset.theme,
            ...[...document.querySelectorAll(".chart")].map(chart => chart.clientWidth)]
        })"""
    )
    shown.pdf(path=tmp_path / "report.pdf", format="A4")
    theme, *_ = shown.evaluate("window.printed")
    assert theme == "light"
    assert background(shown) == DARK  # and back


def test_values_are_said_where_the_pointer_is(opened):
    shown = opened()
    texts = shown.locator("#learning_curves use title").all_text_contents()
    assert any("round" in text and "min to max" in text for text in texts)


def test_names_that_are_programs_do_not_run(opened, tmp_path):
    from tests.report import test_report_files

    evil = test_report_files.EVIL
    config = {"federation.dataset": evil}
    record = histories.make_history(algorithm=evil, config=config)
    file = tmp_path / "report.html"
    content = reports.content(histories.make_result(record))
    file.write_text(page.render(content), "utf-8")
    shown = opened(file)
    shown.on("dialog", lambda dialog: pytest.fail(dialog.message))
    assert evil in shown.locator("h1").text_content()
    texts = shown.locator("#clients text").all_text_contents()
    assert any("<script>alert(1)</script>" in text for text in texts)
    assert shown.evaluate("document.querySelectorAll('img').length") == 0


def cells(shown, column):
    """Texts of a column of the first table, from above."""
    return shown.locator(f"#headline tbody tr > :nth-child({column})").all_inner_texts()


def test_heads_of_columns_sort_rows(opened):
    shown = opened()
    ranked = cells(shown, 1)
    worst = shown.locator("#headline thead button", has_text="worst 10 %")
    worst.click()
    values = [float(text.split()[0]) for text in cells(shown, 5)]
    assert values == sorted(values, reverse=True)
    worst.press("Enter")  # as the keyboard does
    assert [float(text.split()[0]) for text in cells(shown, 5)] == values[::-1]
    head = shown.locator("#headline th[aria-sort]")
    assert head.get_attribute("aria-sort") == "ascending"
    shown.locator("#headline thead button", has_text="difference").click()
    shown.locator("#headline select").select_option("3")  # the order follows
    gaps = [0 if "ref" in x else float(x.split()[0]) for x in cells(shown, 4)]
    assert gaps == sorted(gaps, reverse=True)
    shown.locator("#headline thead button", has_text="method").click()
    assert cells(shown, 1) == sorted(ranked)


def test_the_axis_of_curves_can_be_chosen(opened, tmp_path):
    made = histories.make_history(metrics=("loss",))
    loss = made.metrics["loss"] / 10 + 0.5
    loss[:, 0] = 10
    made = histories.with_metrics(made, loss=loss)
    file = tmp_path / "report.html"
    file.write_text(page.render(reports.content(histories.make_result(made))), "utf-8")
    shown = opened(file)
    select = shown.locator("#learning_curves .axis")
    assert select.locator("option").all_text_contents() == [
        *("zoomed", "full", "logarithmic")
    ]
    views = shown.locator("#learning_curves .view")
    assert [view.is_visible() for view in views.all()] == [True, False, False]
    shown.locator("#learning_curves [data-name]").first.click()
    select.select_option("logarithmic")
    assert [view.is_visible() for view in views.all()] == [False, False, True]
    names = views.nth(2).locator("[data-name]")  # what was hidden stays hidden
    assert names.first.get_attribute("aria-pressed") == "false"
    assert shown.locator("#clients .axis").count() == 0


def test_a_click_on_a_client_draws_its_history(opened):
    shown = opened()
    result = reports.grid_result()
    place = shown.locator("#clients .history")
    assert place.locator("svg").count() == 0
    box = shown.locator("#clients [data-box]", has_text="FedAvg, global")
    box.locator("use").nth(23).dispatch_event("click")  # client 3 with seed 1
    titles = place.locator("circle title").all_text_contents()
    told = [title for title in titles if title.startswith("FedAvg, global")]
    values = result.groups[1].metrics["accuracy"][1, :, 0, 0, 3]
    for text, number, value in zip(told, (0, 5, 10), values, strict=True):
        assert f"round {number}: " in text
        assert float(text.split()[-1]) == pytest.approx(value, rel=1e-3)
    assert len(titles) == 3 * place.locator("li").count() == 3 * 4
    assert "seed 1" in shown.locator("#clients [role=status]").inner_text()
    shown.locator("#methods button", has_text="FedAvg").click()
    assert place.locator("g:not(.hidden)").count() == 3
    shown.locator("#clients input").fill("7")
    shown.locator("#clients input").press("Enter")
    assert "client 7" in place.locator("svg").first.get_attribute("aria-label")
    shown.locator("#clients input").fill("99")
    shown.locator("#clients input").press("Enter")
    assert "no client 99" in shown.locator("#clients [role=status]").inner_text()

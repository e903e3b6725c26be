"""Figures show what they say they show, differ without colour, and leave no setting behind."""

import matplotlib as mpl
import numpy as np
import pytest
from example_release import example_release
from matplotlib import pyplot
from matplotlib.figure import Figure
from page_reader import read_page

from spark_dphist.accounting import (
    SMALL_ERROR_LOWER,
    SMALL_ERROR_UPPER,
    least_fisher_coefficient,
    lower_bound_coefficient,
)
from spark_dphist.audit import PublicAudit
from spark_dphist.config import parse_configuration
from spark_dphist.errors import ConfigurationError, ReleaseError
from spark_dphist.figures import draw_budget, draw_counts, draw_error
from spark_dphist.mechanisms.registry import calibrate
from spark_dphist.overview import shown_groups
from spark_dphist.plan import make_plan

MECHANISM = calibrate("linear_log", relative_error=0.1, floor=50)
HOSTILE = '<script>alert("x")</script>\x1b'


def axes():
    return Figure().add_subplot()


def budget(**changes):
    given = {"records": 1, "worst_rho": MECHANISM.worst_case_budget(), "relative_error": 0.1}
    return draw_budget(axes(), MECHANISM, **(given | changes))


def line(drawn, beginning):
    (found,) = (each for each in drawn.lines if str(each.get_label()).startswith(beginning))
    return np.asarray(found.get_xdata()), np.asarray(found.get_ydata())


def plan(**mechanism):
    content = {
        "input": {"path": "x"},
        "groups": {"columns": ["a"], "keys": {"tuples": [[1]]}},
        "mechanism": {"relative_error": 0.1, "floor": 50} | mechanism,
        "output": {"path": "y"},
    }
    return make_plan(parse_configuration(content, "x.toml"))


def test_the_budget_is_drawn_as_the_mechanism_has_it_below_the_bound_for_everyone():
    drawn = budget()
    sizes, rho = line(drawn, "this release")
    assert sizes[0] == 1
    assert sizes[-1] >= 1e6
    assert np.array_equal(rho, MECHANISM.budget(sizes))
    _, everyone = line(drawn, "bound for everyone")
    assert np.all(rho <= everyone[0])


def test_the_papers_bounds_are_drawn_at_their_coefficients_from_the_floor_on():
    drawn = budget()
    for beginning, coefficient in (
        ("paper: no mechanism", lower_bound_coefficient(0.1)),
        ("least of all noise", least_fisher_coefficient(0.1) / 0.1**2),
    ):
        sizes, rho = line(drawn, beginning)
        assert sizes[0] == 50
        assert rho * sizes**2 == pytest.approx(coefficient, rel=1e-12)
    (band,) = drawn.collections
    x, y = band.get_paths()[0].vertices.T
    scaled = y * x**2 * 0.1**2
    ends = {SMALL_ERROR_LOWER, SMALL_ERROR_UPPER}
    assert all(min(abs(value / end - 1) for end in ends) < 1e-9 for value in scaled)


@pytest.mark.parametrize(
    ("changes", "bands", "lines"),
    [
        ({"relative_error": 0.5}, 0, 4),
        ({"relative_error": None}, 0, 2),
        ({"records": 3}, 0, 2),
    ],
)
def test_bounds_that_do_not_apply_are_not_drawn(changes, bands, lines):
    drawn = budget(**changes)
    assert (len(drawn.collections), len(drawn.lines)) == (bands, lines)


def test_a_mechanism_without_noise_says_so_in_words():
    drawn = draw_budget(
        axes(),
        calibrate("constant", relative_error=1.5, floor=20),
        records=1,
        worst_rho=0.0,
        relative_error=1.5,
    )
    assert "The budget is 0" in drawn.texts[0].get_text()


def test_lines_differ_in_dash_or_weight_and_are_named():
    drawn = budget()
    looks = {
        (each.get_linestyle(), each.get_linewidth(), str(each._dash_pattern))
        for each in drawn.lines
    }
    assert len(looks) == len(drawn.lines) == 4
    legend = [text.get_text() for text in drawn.get_legend().get_texts()]
    assert legend[0] == "this release (linear_log)"
    assert len(legend) == 5


@pytest.mark.parametrize("rounded", [True, False])
def test_the_expected_error_is_drawn_below_its_promise(rounded):
    drawn = draw_error(axes(), MECHANISM, relative_error=0.1, rounded=rounded, confidence=0.95)
    sizes, error = line(drawn, "expected error")
    same, promised = line(drawn, "promised")
    assert np.array_equal(sizes, same)
    assert np.array_equal(error, MECHANISM.expected_absolute_error(sizes, rounded=rounded))
    assert np.all(error < promised)
    _, half = line(drawn, "half the width")
    low, high = MECHANISM.interval(MECHANISM.encode(sizes), 0.95)
    assert np.array_equal(half, (high - low) / 2)


def test_bars_are_as_long_as_the_released_counts_with_intervals_across_their_ends():
    audit = example_release()
    shown = shown_groups(audit.groups, ["city", "month"])
    drawn = draw_counts(axes(), shown, 0.95)
    assert [bar.get_width() for bar in drawn.patches] == [row.noisy_count for row in shown.rows]
    ends = [(low[0], high[0]) for low, high in drawn.collections[0].get_segments()]
    assert ends == [(row.lower, row.upper) for row in shown.rows]
    labels = [label.get_text() for label in drawn.get_yticklabels()]
    assert labels == [row.label for row in shown.rows]
    assert drawn.get_xscale() == "symlog"
    # The largest is at the top.
    assert drawn.get_ylim()[0] > drawn.get_ylim()[1]


# Notebooks


def test_plots_return_axes_and_draw_on_those_they_are_given():
    audit, made = example_release(), plan()
    for thing in (audit, made):
        given = axes()
        assert thing.plot(given) is given
        assert given.lines
        new = thing.plot()
        assert new.get_figure() in [pyplot.figure(number) for number in pyplot.get_fignums()]
        pyplot.close("all")
    error = made.plot(axes(), of="error")
    assert error.get_ylabel() == "error, in records"
    with pytest.raises(ConfigurationError, match="'budget' or 'error', got 'cost'"):
        made.plot(axes(), of="cost")


def test_drawing_leaves_no_setting_changed():
    before = dict(mpl.rcParams)
    plan().plot(axes())
    assert dict(mpl.rcParams) == before


def test_a_plan_in_a_notebook_starts_with_the_worst_case_and_has_its_warnings():
    text = read_page(plan(floor=1)._repr_html_()).text
    assert text.index("worst case, for everyone rho = ") < text.index("By group size")
    assert text.count("Warning: ") == 2
    frame = plan().to_pandas()
    assert list(frame["count"]) == [1, 10, 50, 1000, 1_000_000]
    assert list(frame.columns)[-3:] == ["rho", "epsilon", "attacker_accuracy"]


def test_an_audit_in_a_notebook_shows_budgets_and_hides_nothing():
    audit = example_release()
    root = read_page(audit._repr_html_())
    assert "Public audit of release visits-1" in root.text
    assert f"rho = {audit.header.worst_case_rho:.4g}" in root.text
    assert "(5 largest and 5 smallest groups)" in root.text
    assert "Warning" not in root.text
    assert (
        "this release is not private"
        in read_page(example_release(fixed_release_key=True)._repr_html_()).text
    )


def test_keys_and_names_cannot_change_a_notebook():
    audit = example_release({HOSTILE: [HOSTILE]}, [100], dataset=HOSTILE, release_id=HOSTILE)
    shown = audit._repr_html_()
    assert not list(read_page(shown).all("script"))
    assert "\x1b" not in shown
    assert shown.count("&lt;script&gt;") == 4


def test_an_audit_whose_groups_were_not_collected_can_be_shown_but_not_drawn():
    audit = PublicAudit(example_release().header, None)
    assert "visits-1" in audit._repr_html_()
    for use in (audit.plot, audit.to_pandas, lambda: audit.to_spark(None)):
        with pytest.raises(ReleaseError, match="more than were to be collected"):
            use()


def test_without_matplotlib_a_plot_says_how_to_get_it(monkeypatch):
    import sys

    for name in list(sys.modules):
        if name.split(".")[0] == "matplotlib" or name == "spark_dphist.figures":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("spark_dphist.figures")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for thing in (plan(), example_release()):
        with pytest.raises(ConfigurationError, match=r"needs matplotlib.*spark-dphist\[plots\]"):
            thing.plot()

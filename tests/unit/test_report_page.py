"""The report: everything promised is in it, nothing else is, and anybody can read it."""

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from example_release import CITIES, COUNTS, MONTHS, example_release, stored
from matplotlib.figure import Figure
from opened_files import opened_files
from page_reader import read_page

from spark_dphist.accounting.composition import PolicyCost, Rho
from spark_dphist.accounting.key_selection import KeySelection
from spark_dphist.accounting.ledger import Caps, Ledger
from spark_dphist.accounting.privacy_unit import PrivacyUnit
from spark_dphist.audit import PublicAudit
from spark_dphist.cli import main
from spark_dphist.errors import ConfigurationError, ReleaseError
from spark_dphist.figures import draw_counts
from spark_dphist.overview import heat_map, shown_groups
from spark_dphist.report import public_release, read_release, render_report
from spark_dphist.shown import amount_text, fitted, key_text, power_text

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
STYLE = Path(sys.modules[render_report.__module__].__file__).with_name("style.css")
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</title></style><svg onload=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    r"$\frac{$ _^ \undefined $",
    "a\nb\t\x1b[31m\u202etxt.exe",
    "--> ]]> &amp; &",
    "x" * 5000,
]


def page(audit=None, ledger=None):
    text = render_report(public_release(example_release() if audit is None else audit, ledger))
    return text, read_page(text)


@pytest.fixture(scope="module")
def usual():
    return page()


def section(root, heading):
    """The section of the page whose heading begins so."""
    (found,) = (
        each for each in root.all("section") if next(each.all("h2")).text.startswith(heading)
    )
    return found


def rows(table):
    return [
        [cell.text for cell in row.children if not isinstance(cell, str)]
        for body in table.all("tbody")
        for row in body.all("tr")
    ]


# What it says


def test_the_first_thing_is_what_everyone_is_promised(usual):
    _, root = usual
    header = example_release().header
    cards = section(root, "In short").text
    assert f"rho ≤ {header.worst_case_rho:.4g}" in cards
    assert f"ε ≤ {header.epsilon:.4g} at δ = 10⁻⁶" in cards
    assert f"≤ {100 * header.attacker_accuracy:.4g}" in cards
    assert "below 5 records in groups smaller than 50" in cards


def test_the_unit_and_the_neighbouring_relation_are_stated(usual):
    facts = dict(rows(next(section(usual[1], "1.").all("table"))))
    assert facts["Privacy unit"] == "record"
    assert facts["Neighbouring data sets"] == "add or remove one privacy unit, with all its records"
    unit = PrivacyUnit(column="user_id", max_records=4)
    _, root = page(example_release(unit=unit))
    assert "all records of one 'user_id'" in section(root, "1.").text
    assert "at most 4 in all, at most 4 in one group" in section(root, "1.").text


def test_every_group_is_listed_with_its_numbers_from_the_largest_down(usual):
    audit = example_release()
    table = next(section(usual[1], "2.").all("table"))
    expected = sorted(audit.groups.to_pylist(), key=lambda row: -row["noisy_count"])
    for shown, row in zip(rows(table), expected, strict=True):
        numbers = [f"{row[name]:,}" for name in ("noisy_count", "lower", "upper")]
        budgets = [amount_text(row[name], 3) for name in ("rho_at_noisy_count", "rho_upper")]
        assert shown == [row["city"], str(row["month"]), *numbers, *budgets]


def test_of_many_groups_the_largest_and_the_smallest_are_shown_and_it_says_so():
    number = 1000
    columns = {"key": [f"group {place}" for place in range(number)]}
    audit = example_release(columns, np.arange(1, number + 1) * 1000, relative_error=0.001)
    _, root = page(audit)
    counts = section(root, "2.")
    assert "Shown are the 20 largest and the 20 smallest; 960 groups between" in counts.text
    released = np.sort(audit.groups["noisy_count"].to_numpy())[::-1]
    listed = rows(next(counts.all("table")))
    assert listed[20] == ["960 groups between are left out"]
    shown = [int(row[1].replace(",", "")) for row in listed if len(row) > 1]
    assert shown == [*released[:20], *released[-20:]]


def test_the_budgets_and_errors_by_size_are_those_of_the_mechanism(usual):
    release = public_release(example_release())
    table = next(section(usual[1], "3.").all("table"))
    for row, count in zip(rows(table), [1, 10, 50, 1000, 1_000_000], strict=True):
        assert row[0] == f"{count:,}"
        assert row[1] == amount_text(float(release.mechanism.budget(count)))
        error = release.mechanism.expected_absolute_error(count, rounded=True)
        assert row[4] == amount_text(float(error))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fixed_release_key": True}, "This release is not private"),
        ({"delta": 0.05}, "delta = 0.05 lets epsilon fail"),
        ({"dataset": "visits"}, "was charged to the data set visits of a ledger"),
    ],
)
def test_what_weakens_a_release_is_shouted(usual, changes, message):
    assert message not in usual[1].text
    _, root = page(example_release(**changes))
    assert message in root.text


def test_a_key_set_that_was_learnt_is_said_to_be_and_its_cost_is_counted(usual):
    selection = KeySelection(epsilon=0.5, delta=1e-7)
    audit = example_release(selection=selection)
    _, root = page(audit)
    facts = dict(rows(next(section(root, "1.").all("table"))))
    assert "learnt from the data with (ε, δ)-differential privacy, ε = 0.5" in facts["Key set"]
    assert f"rho = {amount_text(selection.rho_upper)} of the bound" in facts["Key set"]
    assert audit.header.worst_case_rho > example_release().header.worst_case_rho + 0.1
    assert "declared beforehand" not in root.text
    assert "declared beforehand" in usual[1].text
    unpaid = replace(audit.header, worst_case_rho=example_release().header.worst_case_rho)
    with pytest.raises(ReleaseError, match="costs everyone rho"):
        public_release(PublicAudit(unpaid, audit.groups))


def test_a_learnt_key_set_without_groups_has_its_report_and_figure():
    learnt = example_release(selection=KeySelection(epsilon=0.5, delta=1e-7))
    header = replace(learnt.header, key_set_size=0)
    text, root = page(PublicAudit(header, learnt.groups.slice(0, 0)))
    counts = section(root, "2.")
    assert "0 groups: the key set was learnt from the data" in counts.text
    assert not list(counts.all("table"))
    assert not list(counts.all("svg"))
    assert "nan" not in text.lower().split()
    shown = shown_groups(learnt.groups.slice(0, 0), header.group_columns)
    axes = draw_counts(Figure().add_subplot(), shown, 0.95)
    assert not axes.patches


def test_a_floor_of_one_is_called_weak_before_anything_else():
    _, root = page(example_release(floor=1))
    first = next(root.all("section"))
    assert "which is little privacy" in first.text
    assert "Weak settings" in first.text


def test_a_selection_that_takes_most_of_a_weak_budget_is_blamed_in_the_report():
    audit = example_release(selection=KeySelection(epsilon=2.0, delta=1e-7))
    first = next(page(audit)[1].all("section"))
    assert f"rho = {audit.header.worst_case_rho:.3g}, which is little privacy" in first.text
    assert "Lower the selection's epsilon, or declare the key set." in first.text
    assert "Raise the floor" not in first.text


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "shifted_log", "rounding": "none"},
        {"name": "fixed_gaussian"},
        {"name": "fixed_laplace", "unit": PrivacyUnit(column="u", max_records=3)},
        {"name": "constant", "relative_error": 1.5},
        {"name": "linear_log", "relative_error": 0.7, "confidence": 0.5},
        {"name": "linear_log", "floor": 7.5, "counts": [3], "columns": {"key": [None]}},
        {"counts": [0, 0], "columns": {"key": [True, None]}},
    ],
    ids=str,
)
def test_every_mechanism_unit_and_rounding_has_its_report(changes):
    _, root = page(example_release(**changes))
    assert len(list(root.all("svg"))) >= 3


def test_examples_of_use_follow_from_the_numbers(usual):
    release = public_release(example_release())
    one, other = shown_groups(release.groups, ["city", "month"]).rows[:2]
    text = section(usual[1], "6.").text
    assert f"between {one.lower + other.lower:,} and {one.upper + other.upper:,}" in text
    assert f"between {one.lower / other.upper:.3g} and {one.upper / other.lower:.3g}" in text
    large = float(release.mechanism.expected_bias(10**12)) / 10**12
    assert f"{-100 * large:.4g} % too small on average" in text.replace("\xa0", " ")


# Figures


def test_two_keys_get_a_map_and_one_or_three_do_not(usual):
    assert "Released counts by city and month" in section(usual[1], "2.").text
    for names in (["a"], ["a", "b", "c"]):
        columns = {name: [f"{name}{place}" for place in range(12)] for name in names}
        _, root = page(example_release(columns))
        assert "figure-heat" not in {each.attributes.get("id") for each in root.all()}
        assert len(list(root.all("svg"))) == 3


def test_each_cell_of_the_map_has_the_count_of_its_keys():
    audit = example_release()
    cells = heat_map(audit.groups.slice(1), ["city", "month"])
    assert cells.rows == tuple(sorted(CITIES))
    assert cells.columns == tuple(map(str, MONTHS))
    for row in audit.groups.to_pylist()[1:]:
        at = cells.rows.index(row["city"]), cells.columns.index(str(row["month"]))
        assert cells.values[at] == row["noisy_count"]
    assert np.isnan(cells.values[cells.rows.index("Oslo"), 0])
    assert np.sum(np.isnan(cells.values)) == 1


def test_a_map_that_cannot_be_read_is_left_out_and_it_says_so():
    many = [f"{place:03}" for place in range(61)]
    _, root = page(example_release({"a": many, "b": ["x"] * 61}, np.full(61, 100)))
    assert "would have too many rows or columns" in section(root, "2.").text


def test_every_figure_is_named_and_described_in_words(usual):
    _, root = usual
    by_id = {each.attributes.get("id"): each for each in root.all()}
    figures = list(root.all("svg"))
    assert len(figures) == 4
    for svg in figures:
        assert svg.attributes["role"] == "img"
        assert len(by_id[svg.attributes["aria-labelledby"]].text) > 10
        assert len(by_id[svg.attributes["aria-describedby"]].text) > 50
        assert next(svg.parent.parent.all("figcaption")).text
        # Letters are letters, to be searched and read aloud.
        assert any(svg.all("text"))


# What is not in it


def test_the_page_has_no_scripts_and_needs_nothing_from_elsewhere(usual):
    text, root = usual
    tags = {each.tag for each in root.all()}
    assert not tags & {
        "script",
        "link",
        "img",
        "image",
        "iframe",
        "object",
        "embed",
        "base",
        "form",
    }
    for each in root.all():
        for name, value in each.attributes.items():
            assert not name.startswith("on")
            if name.split(":")[-1] in ("href", "src", "action", "data"):
                assert value.startswith("#")
    assert set(re.findall(r"url\(([^)]{1,4})", text)) <= {"#fig"}
    assert set(re.findall(r"https?://[^\s\"'<]*", text)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    policy = next(each for each in root.all("meta") if "http-equiv" in each.attributes)
    assert policy.attributes["content"] == "default-src 'none'; style-src 'unsafe-inline'"


@pytest.mark.parametrize("place", range(3))
def test_keys_and_names_of_strangers_are_text_and_nothing_else(place):
    plain = page(
        example_release({"a": [f"k{i}" for i in range(len(HOSTILE))], "b": [1] * 8}, [9] * 8)
    )
    columns = {"a": HOSTILE, "b": [1] * 8}
    if place == 1:
        columns = {HOSTILE[0] + HOSTILE[5]: ["k"] * 8, HOSTILE[2]: list(range(8))}
    changes = {}
    if place == 2:
        names = ("release_name", "input", "output", "dataset", "privacy_unit", "release_id")
        changes = dict(zip(names, [*HOSTILE[:4], HOSTILE[5], HOSTILE[6]], strict=True))
    text, root = page(example_release(columns, [9] * 8, **changes))
    elements = {each.tag for each in root.all()}
    assert elements <= {each.tag for each in plain[1].all()}
    assert not any(name.startswith("on") for each in root.all() for name in each.attributes)
    assert "alert(1)" in text
    for character in "\x1b\u202e":
        assert character not in text


def test_a_template_in_a_key_is_not_filled_in():
    _, root = page(example_release({"a": ["{{ 7 * 7 }}", "k"]}, [9, 8]))
    assert "{{ 7 * 7 }}" in section(root, "2.").text


@pytest.fixture
def beside_confidential(tmp_path):
    """A stored release with a confidential audit beside it, as a run leaves them."""
    audit = example_release()
    path = stored(audit, tmp_path)
    secret = tmp_path / "counts_confidential"
    secret.mkdir()
    released = audit.groups.select(["city", "month", "noisy_count", "lower", "upper"])
    for name, values in (
        ("confidential_true_count", pa.array(COUNTS)),
        ("confidential_rho", pa.array([0.1] * len(COUNTS))),
    ):
        released = released.append_column(name, values)
    pyarrow.parquet.write_table(released, secret / "part-00000.parquet")
    return path, secret


def test_a_confidential_audit_beside_the_public_one_is_never_opened(beside_confidential):
    path, secret = beside_confidential
    with opened_files(Path(path).parent) as opened:
        text = render_report(read_release(path))
    # The watch works: what is public was seen to be opened.
    assert {each.parent.name for each in opened if each.suffix == ".parquet"} == {
        "counts_audit_groups",
        "counts_audit_header",
    }
    assert not [each for each in opened if secret in each.parents]
    assert "confidential_true_count" not in text


def test_a_confidential_audit_is_refused_whatever_it_is_called(beside_confidential):
    path, secret = beside_confidential
    with pytest.raises(ConfigurationError, match="there is no audit at"):
        read_release(str(secret))
    groups = Path(f"{path}_audit_groups")
    shutil.rmtree(groups)
    secret.rename(groups)
    with pytest.raises(ConfigurationError, match="it has 'confidential_true_count'"):
        read_release(path)


def test_columns_are_those_that_releases_call_public_and_confidential():
    from spark_dphist.report.source import CONFIDENTIAL_COLUMNS, RELEASED_COLUMNS
    from spark_dphist.spark import group_key

    assert CONFIDENTIAL_COLUMNS == group_key.CONFIDENTIAL_COLUMNS
    assert RELEASED_COLUMNS == group_key.PUBLISHED_COLUMNS


# What it is made from


@pytest.mark.parametrize(
    "suffix", ["", "/", "_audit", "_audit_groups", "_audit_header", "_audit_header/"]
)
def test_a_release_is_named_by_its_counts_or_its_audit(tmp_path, suffix):
    audit = example_release()
    path = stored(audit, tmp_path) + suffix
    assert read_release(path).header == audit.header


def changed(audit, column, values):
    place = audit.groups.column_names.index(column)
    return PublicAudit(audit.header, audit.groups.set_column(place, column, pa.array(values)))


def test_an_audit_that_contradicts_itself_gives_no_report():
    audit = example_release()
    noisy = audit.groups["noisy_count"].to_pylist()
    with pytest.raises(ReleaseError, match="'rho_at_noisy_count' does not follow"):
        public_release(changed(audit, "noisy_count", [*noisy[:-1], 10**6]))
    with pytest.raises(ReleaseError, match="an interval ends before it begins"):
        public_release(changed(audit, "upper", [-1] * len(noisy)))
    with pytest.raises(ReleaseError, match="states 12 groups, 11 are there"):
        public_release(PublicAudit(audit.header, audit.groups.slice(1)))
    more = audit.groups.append_column("n", pa.array(COUNTS))
    with pytest.raises(ReleaseError, match="the groups have the columns"):
        public_release(PublicAudit(audit.header, more))
    for field, message in (
        ({"worst_case_rho": 0.001}, "costs everyone rho = 0.0127"),
        ({"records_per_group": 2, "records_per_unit": 2}, "costs everyone rho"),
    ):
        with pytest.raises(ReleaseError, match=message):
            public_release(replace(audit, header=replace(audit.header, **field)))
    with pytest.raises(ConfigurationError, match="comes without its 12 groups"):
        public_release(PublicAudit(audit.header, None))


@pytest.fixture
def ledger(tmp_path):
    """A ledger with a committed release and one that is half done; caps are nearly used up."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    header = example_release().header
    with Ledger.initialise(url) as opened:
        opened.add_dataset("visits", Caps.of(0.02, at_least={1000: 0.5}))
        cost = PolicyCost(Rho.upper(header.worst_case_rho), "linear_log")
        for release_id in (header.release_id, "dead"):
            if release_id == "dead":
                cost = PolicyCost(Rho.upper(0.001), "linear_log")
            opened.reserve("visits", release_id, cost, {})
        opened.commit(header.release_id, {"counts_digest": header.counts_digest})
        yield opened


def test_the_delta_for_learnt_key_sets_is_among_the_limits_of_a_report(ledger):
    audit = example_release(dataset="visits")
    assert "on delta" not in next(section(page(audit, ledger)[1], "5.").all("table")).text
    ledger.set_caps("visits", Caps.of(0.02, selection_delta="4e-7"))
    ledger.reserve(
        "visits", "learnt", PolicyCost(Rho(0), "any", noise="zcdp", delta=Rho.upper("1e-7")), {}
    )
    table = next(section(page(audit, ledger)[1], "5.").all("table"))
    assert "that on delta as a probability" in table.text
    _, of_delta = rows(table)
    shown = [amount_text(amount) for amount in (4e-7, 1e-7, 3e-7)]
    assert [each.strip() for each in of_delta] == ["delta for learnt key sets", *shown, "25 %"]


def test_the_ledger_is_shown_as_it_stands(ledger):
    _, root = page(example_release(dataset="visits"), ledger)
    state = section(root, "5.")
    assert "is committed and was charged rho = 0.01273 to the data set visits" in state.text
    assert "1 committed release." in state.text
    assert "Reserved but not finished" in state.text
    assert "dead" in state.text
    everyone, at_least = rows(next(state.all("table")))
    assert everyone[1:4] == ["0.02", "0.01373", "0.006268"]
    assert everyone[4].replace("\xa0", " ") == "68.66 %"
    assert "1,000" in at_least[0] or "1000" in at_least[0]
    assert str(ledger.location) in state.text


def test_a_release_that_the_ledger_does_not_have_so_gives_no_report(ledger):
    with pytest.raises(ReleaseError, match="does not have it"):
        public_release(example_release(release_id="other"), ledger)
    with pytest.raises(ReleaseError, match="the ledger has other numbers under its id"):
        public_release(example_release(counts_digest="00" * 32), ledger)
    ledger.abort("dead", nothing_was_published=True)
    with pytest.raises(ReleaseError, match="nothing of it was published"):
        public_release(example_release(release_id="dead"), ledger)


# Whom it is for


def test_the_page_can_be_walked_by_its_headings_and_tables(usual):
    _, root = usual
    (html,) = root.all("html")
    assert html.attributes["lang"] == "en"
    levels = [int(each.tag[1]) for each in root.all() if re.fullmatch("h[1-6]", each.tag)]
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    identifiers = [each.attributes["id"] for each in root.all() if "id" in each.attributes]
    assert len(identifiers) == len(set(identifiers))
    for link in root.all("a"):
        assert link.attributes["href"][1:] in identifiers
    for each in root.all():
        for name in ("aria-labelledby", "aria-describedby"):
            assert each.attributes.get(name, identifiers[0]) in identifiers
    for table in root.all("table"):
        assert next(table.all("caption")).text
        assert all(cell.attributes["scope"] in ("row", "col") for cell in table.all("th"))


def luminance(colour):
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_letters_have_the_contrast_that_wcag_asks_for(usual):
    named = dict(re.findall(r"--(\w+): (#\w{6})", STYLE.read_text()))
    drawn = {match for match in re.findall(r"fill: (#\w{6})", usual[0]) if match != "#ffffff"}
    text = [named["ink"], named["quiet"], named["blue"], "#6b6b6b"]
    for letters in text:
        for ground in ("#ffffff", named["pale"], "#fff8ea"):
            darker, lighter = sorted((luminance(letters), luminance(ground)))
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (letters, ground)
    assert drawn


def test_a_page_can_be_printed_and_read_on_a_narrow_screen():
    style = STYLE.read_text()
    for rule in ("@media print", "@media (max-width", "break-inside: avoid", "overflow-x: auto"):
        assert rule in style


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: nothing was rendered")
def test_a_browser_shows_the_page_at_full_width_and_on_a_phone(tmp_path, usual):
    from matplotlib import image

    file = tmp_path / "report.html"
    file.write_text(usual[0], encoding="utf-8")
    for width in (1000, 500):
        shot = tmp_path / f"{width}.png"
        subprocess.run(
            [
                CHROMIUM,
                *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"),
                *("--no-first-run", "--disable-background-networking", "--hide-scrollbars"),
                *("--disable-component-update", "--disable-sync"),
                f"--user-data-dir={tmp_path / 'profile'}",
                f"--window-size={width},3000",
                f"--screenshot={shot}",
                file.as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=300,
        )
        seen = np.rint(image.imread(shot)[:, :, :3] * 255).astype(int)
        assert seen.shape == (3000, width, 3)
        # Nothing runs over the right edge, and bars and cards were drawn.
        assert np.all(seen[:, -12:] >= 250)
        for colour in ((0xCF, 0xE0, 0xEE), (0xEE, 0xF4, 0xF9), (0x0B, 0x4F, 0x8A)):
            assert np.sum(np.all(np.abs(seen - colour) <= 2, axis=2)) > 500


# The command


@pytest.fixture
def line(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as leaving:
            main(["report", *arguments])
        captured = capsys.readouterr()
        return leaving.value.code or 0, captured.out, captured.err

    return run


def test_the_command_writes_one_file_and_says_where(line, tmp_path):
    path = stored(example_release(), tmp_path / "out")
    before = set(tmp_path.rglob("*"))
    assert line(path) == (0, "visits-1.html\n", "")
    assert set(tmp_path.rglob("*")) - before == {tmp_path / "visits-1.html"}
    assert line(path, "--output", "other.html") == (0, "other.html\n", "")
    assert (tmp_path / "other.html").read_text() == (tmp_path / "visits-1.html").read_text()


def test_a_configuration_names_its_audit_and_its_ledger(line, tmp_path, ledger):
    stored(example_release(dataset="visits"), tmp_path / "out")
    file = tmp_path / "visits.toml"
    file.write_text(
        "input.path = 'there/is/none'\n"
        "groups = {columns = ['city', 'month'], keys = {table = 'none'}}\n"
        "mechanism = {relative_error = 0.1, floor = 50}\n"
        "output.path = 'out/counts'\n"
        f"ledger = {{url = '{ledger.location}', dataset = 'visits'}}\n"
    )
    assert line(str(file)) == (0, "visits-1.html\n", "")
    assert "was charged rho = 0.01273" in read_page((tmp_path / "visits-1.html").read_text()).text


def test_a_ledger_can_be_named(line, tmp_path, ledger):
    path = stored(example_release(dataset="visits"), tmp_path / "out")
    assert line(path, "--ledger", ledger.location)[0] == 0
    assert "ledger was made without" not in (tmp_path / "visits-1.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["no/such"], 2, "there is no audit at 'no/such'"),
        (["no-such.toml"], 2, "configuration 'no-such.toml' does not exist"),
        (["out/counts", "--output", "no/such/file.html"], 1, "cannot be written to 'no/such/file"),
        (["out/counts", "--ledger", "sqlite:///none.db"], 1, "none.db"),
    ],
)
def test_a_report_that_cannot_be_made_says_why(line, tmp_path, arguments, code, message):
    stored(example_release(), tmp_path / "out")
    got, out, err = line(*arguments)
    assert (got, out) == (code, "")
    assert message in err
    assert not list(tmp_path.glob("*.html"))


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_without_the_extra_one_sentence_says_how_to_get_it(line, tmp_path, monkeypatch, package):
    path = stored(example_release(), tmp_path / "out")
    for name in list(sys.modules):
        if name.split(".")[0] == package or name.startswith(
            ("spark_dphist.report", "spark_dphist.fig")
        ):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    code, _, err = line(path)
    assert (code, err) == (
        2,
        f"Error: spark-dphist report needs {package}, which is not installed: "
        "pip install 'spark-dphist[report]'\n",
    )


def test_the_template_is_packaged_where_it_is_looked_for():
    package = Path(sys.modules[public_release.__module__].__file__).parent
    assert {"template.html", "style.css"} <= {file.name for file in package.iterdir()}


# Words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        ("NULL", '"NULL"'),
        ("", '""'),
        (" a", '" a"'),
        (b"\x00\xff", "00ff"),
        (True, "True"),
        (-5, "-5"),
        ("a\nb\u202e", r"a\nb\u202e"),
    ],
)
def test_a_key_is_shown_so_that_it_can_be_told_from_others(value, text):
    assert key_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1e-6, "10⁻⁶"),
        (3.17e-11, "3.170 × 10⁻¹¹"),
        (0.0127, "0.0127"),
        (12345.6, "12,346"),
    ],
)
def test_amounts_are_written_without_computer_notation(value, text):
    assert amount_text(value) == text
    assert power_text(1e6) == "10⁶"


def test_of_a_long_key_every_part_keeps_its_beginning():
    assert fitted(["a", "b"], 36) == "a · b"
    short = fitted(["region " * 20, "2024-05-01", "7"], 36)
    assert len(short) <= 36
    assert re.fullmatch(r"region .*… · 2024-05-01 · 7", short)

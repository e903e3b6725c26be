"""The attack by group size: as good as any attacker can be, and no better than is possible."""

from __future__ import annotations

import functools
import io
import json
import sys
from pathlib import Path

import broken_mechanisms as broken
import numpy as np
import pytest
from broken_mechanisms import broken_version
from rich.console import Console
from scipy.stats import norm

from spark_dphist import attack
from spark_dphist.accounting.privacy_unit import PrivacyUnit
from spark_dphist.attack import attack_release, best_possible_accuracy, sizes_under_attack
from spark_dphist.attack_figure import draw, message
from spark_dphist.cli import main
from spark_dphist.cli_attack import attack_view
from spark_dphist.mechanisms import Constant, FixedGaussian, FixedLaplace, LinearLog, ShiftedLog
from spark_dphist.streams import ReleaseKey
from spark_dphist.verification.samples import Pair

VISITS = str(Path(__file__).parents[2] / "conf" / "visits.toml")
FEW = {"key": ReleaseKey.fixed_for_tests(bytes(range(32))), "draws": 2**14}
LINEAR = LinearLog.calibrate(relative_error=0.1, floor=10)
PEOPLE = PrivacyUnit(column="user_id", max_records=5)


@pytest.fixture(scope="module")
def report():
    return attack_release(LINEAR, relative_error=0.1, unit=PEOPLE, **FEW)


@pytest.mark.parametrize("count", [1, 7, 50, 1_000, 10**6])
def test_on_a_fine_lattice_the_best_attacker_is_right_with_probability_phi(count):
    mechanism = ShiftedLog.calibrate(relative_error=0.2, floor=7)
    step = np.log1p(1 / (count - 1 + mechanism.shift))
    expected = norm.cdf(step / (2 * mechanism.sigma))
    assert best_possible_accuracy(mechanism, Pair(count - 1, count, 1)) == pytest.approx(
        expected, abs=1e-10
    )


@pytest.mark.parametrize("scale", [0.4, 1.3, 6.0])
@pytest.mark.parametrize("records", [1, 2, 5])
def test_on_whole_counts_the_best_attacker_is_the_distance_of_the_distributions(scale, records):
    z = np.arange(-200, 201)
    weights = np.exp(-(z**2) / (2 * scale**2))
    weights /= weights.sum()
    distance = np.abs(weights - np.roll(weights, records)).sum() / 2
    mechanism = FixedGaussian(scale=scale, floor=10)
    assert best_possible_accuracy(mechanism, Pair(30, 30 + records, records)) == pytest.approx(
        (1 + distance) / 2, abs=1e-12
    )


def test_against_laplace_noise_the_best_attacker_is_randomised_response():
    mechanism = FixedLaplace(epsilon=0.7, floor=10)
    assert best_possible_accuracy(mechanism, Pair(9, 10, 1)) == pytest.approx(
        np.exp(0.7) / (1 + np.exp(0.7)), abs=1e-12
    )


def test_every_attack_is_within_its_band_of_the_best_possible(report):
    # The chance that any of the bands misses is at most 1 %, under this key it does not happen.
    for release in report.releases:
        for size in release.sizes:
            assert size.accuracy_lower <= size.best_possible <= size.claimed
            assert size.best_possible <= size.accuracy_upper + 0.01
            assert size.accuracy > size.best_possible - 0.02


def test_growing_noise_hides_members_of_large_groups_and_fixed_noise_does_not(report):
    fixed, ours = report.fixed, report.configured
    assert fixed.last.accuracy_lower > 0.9
    assert ours.sizes[0].accuracy_lower > 0.9
    assert ours.last.accuracy_upper < 0.55
    assert ours.last.best_possible == pytest.approx(0.5, abs=1e-4)


def test_both_keep_the_same_promise(report):
    for release in report.releases:
        for size in release.sizes:
            assert size.expected_error < 0.1 * max(size.count, 10)
            assert size.mean_error == pytest.approx(size.expected_error, rel=0.05)


def test_an_attack_on_half_the_noise_is_seen_to_beat_what_is_possible():
    mechanism = broken_version(broken.HalfNoiseLinearLog, 0.1, 10)
    attacked = attack_release(mechanism, relative_error=0.1, unit=PEOPLE, **FEW).configured
    assert attacked.sizes[0].accuracy_lower > attacked.sizes[0].claimed


def test_the_shifted_log_is_compared_at_its_worst_case_too():
    mechanism = ShiftedLog.calibrate(relative_error=0.1, floor=50)
    attacked = attack_release(mechanism, relative_error=0.1, **FEW)
    same_promise, same_worst, ours = attacked.releases
    assert ours.sizes[0].best_possible == pytest.approx(same_worst.sizes[0].best_possible, abs=2e-3)
    assert same_promise.sizes[0].best_possible < same_worst.sizes[0].best_possible


def test_without_noise_and_without_the_count_there_is_nothing_to_learn():
    attacked = attack_release(Constant(floor=10), relative_error=0.9, **FEW)
    assert {size.best_possible for size in attacked.configured.sizes} == {0.5}
    assert all(
        size.accuracy_lower <= 0.5 <= size.accuracy_upper for size in attacked.configured.sizes
    )


def test_units_counted_once_have_one_record_in_a_group():
    unit = PrivacyUnit(column="user_id", max_records=5, distinct=True)
    assert attack_release(LINEAR, relative_error=0.1, unit=unit, **FEW).records == 1


def test_groups_are_never_smaller_than_the_unit_in_them():
    assert sizes_under_attack(10, 1)[:4] == [1, 3, 10, 30]
    assert sizes_under_attack(50.5, 5)[:4] == [5, 10, 30, 51]
    assert sizes_under_attack(10, 2_000_000) == [2_000_000]


def test_the_bands_are_for_all_attacks_together():
    sure = attack_release(LINEAR, relative_error=0.1, confidence=0.5, **FEW)
    surer = attack_release(LINEAR, relative_error=0.1, confidence=0.999, **FEW)
    assert surer.half_width > 1.2 * sure.half_width
    # Two releases at eight sizes or more: far wider than a band for one point.
    assert sure.half_width > 2 * norm.isf(0.25) * 0.5 / np.sqrt(sure.scored)


def test_the_title_says_what_was_found(report):
    assert message(report).startswith("The larger the group, the better")
    fixed = FixedGaussian.calibrate(relative_error=0.1, floor=10)
    same = attack_release(fixed, relative_error=0.1, **FEW)
    assert "equally exposed" in message(same)


def test_the_lines_of_the_figure_can_be_told_apart_without_colour(report):
    figure = draw(report)
    (legend,) = figure.legends
    looks = {(line.get_linestyle(), line.get_marker()) for line in legend.get_lines()}
    assert len(looks) == len(report.releases)
    assert [text.get_text() for text in legend.get_texts()] == [
        release.label for release in report.releases
    ]


@pytest.fixture
def line(capsys, monkeypatch):
    """Run the command with few draws under a fixed key; exit code, output and errors."""
    monkeypatch.setattr(attack, "attack_release", functools.partial(attack_release, **FEW))

    def run(*arguments):
        with pytest.raises(SystemExit) as leaving:
            main(["attack", *arguments])
        captured = capsys.readouterr()
        return leaving.value.code or 0, captured.out, captured.err

    return run


@pytest.mark.parametrize(("suffix", "start"), [(".svg", b"<?xml"), (".png", b"\x89PNG")])
def test_the_command_draws_a_figure(line, tmp_path, suffix, start):
    path = tmp_path / f"attack{suffix}"
    code, out, err = line(VISITS, "--figure", str(path))
    assert code == 0
    assert path.read_bytes().startswith(start)
    assert "1,000,000" in out
    assert str(path) in err


def test_programs_read_the_attacks_as_json(line):
    code, out, _ = line(VISITS, "--json")
    read = json.loads(out)
    assert (code, read["records"], len(read["releases"])) == (0, 5, 2)
    assert read["releases"][-1]["mechanism"] == "linear_log"
    assert read["releases"][-1]["sizes"][0]["count"] == 5
    assert read["fixed_release_key"] is True


def test_a_figure_that_cannot_be_saved_is_refused_before_the_attack(line, tmp_path, monkeypatch):
    monkeypatch.setattr(attack, "attack_release", None)
    code, _, err = line(VISITS, "--figure", "attack.doc")
    assert code == 2
    assert "must end in one of .svg, .png, .pdf" in err
    code, _, err = line(VISITS, "--figure", str(tmp_path / "nowhere" / "attack.svg"))
    assert code == 2
    assert "there is no directory" in err
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, _, err = line(VISITS, "--figure", str(tmp_path / "attack.svg"))
    assert code == 2
    assert "pip install 'spark-dphist[plots]'" in err


def test_the_table_fits_80_columns():
    mechanism = ShiftedLog.calibrate(relative_error=0.1, floor=50)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(attack_view(attack_release(mechanism, relative_error=0.1, **FEW)))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text

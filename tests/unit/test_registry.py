"""Mechanisms are found by name, with their options checked by name."""

import json

import pytest

from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms import Mechanism, ShiftedLog
from spark_dphist.mechanisms.registry import calibrate, calibrators, check_options, restored


@pytest.mark.parametrize("name", sorted(calibrators()))
def test_each_name_gives_a_mechanism_of_that_name_that_keeps_the_promise(name):
    r = 1.5 if name == "constant" else 0.3
    mechanism = calibrate(name, relative_error=r, floor=20)
    assert isinstance(mechanism, Mechanism)
    assert mechanism.name == name
    assert mechanism.floor == 20
    for count in (0, 1, 20, 1000):
        assert mechanism.expected_absolute_error(count) < r * max(count, 20)


def test_options_reach_the_mechanism():
    got = calibrate("shifted_log", relative_error=0.3, floor=20, options={"shift": 5})
    assert got == ShiftedLog.calibrate(relative_error=0.3, floor=20, shift=5)


def test_an_unknown_mechanism_gets_the_nearest():
    with pytest.raises(ConfigurationError, match=r"'shiftedlog' is unknown.*'shifted_log'"):
        calibrate("shiftedlog", relative_error=0.3, floor=20)
    with pytest.raises(ConfigurationError, match=r"'' is unknown. Known are: 'shifted_log'"):
        check_options("", {})


def test_an_unknown_option_gets_the_nearest_and_is_never_passed_on():
    with pytest.raises(ConfigurationError, match=r"'shfit' is no option.*Did you mean 'shift'"):
        calibrate("shifted_log", relative_error=0.3, floor=20, options={"shfit": 5})
    with pytest.raises(ConfigurationError, match="'sigma' is no option"):
        calibrate("shifted_log", relative_error=0.3, floor=20, options={"sigma": 0.01})
    with pytest.raises(ConfigurationError, match="'self' is no option"):
        calibrate("shifted_log", relative_error=0.3, floor=20, options={"self": 0.01})


def test_no_mechanism_is_offered_that_has_no_finite_divergence():
    with pytest.raises(ConfigurationError, match="unknown"):
        calibrate("unequal_variance_gaussian", relative_error=0.3, floor=20)


@pytest.mark.parametrize("name", sorted(calibrators()))
def test_what_an_audit_states_gives_the_same_mechanism_back(name):
    made = calibrate(name, relative_error=1.5 if name == "constant" else 0.3, floor=20.25)
    assert restored(name, json.loads(json.dumps(made.parameters()))) == made


def test_parameters_that_a_mechanism_does_not_have_restore_nothing():
    stated = calibrate("linear_log", relative_error=0.3, floor=20).parameters()
    with pytest.raises(ConfigurationError, match="'linear_logs' is unknown"):
        restored("linear_logs", stated)
    for changed in (stated | {"slope": 2}, stated | {"scale_bits": 3}, {"floor": 20}):
        with pytest.raises(ConfigurationError, match="the version that wrote it"):
            restored("linear_log", changed)

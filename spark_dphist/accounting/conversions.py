"""What a zCDP budget means: (epsilon, delta), mu-GDP and an attacker's accuracy, and back.

Every function takes numbers or numpy arrays, broadcasts them, and returns a float for numbers and
a float64 array otherwise. rho and epsilon are in nats. A name that ends in ``_upper`` (``_lower``)
promises a value at or above (below) the exact one, floating-point error included; the functions
of the C library and of scipy are taken to be within ``_ULPS`` units in the last place.

The equations, their sources and what not to read into them: docs/accounting.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, expit, ndtr, ndtri

from spark_dphist.errors import ConfigurationError

FloatArray = NDArray[np.float64]
Numbers = NDArray[Any]

_ULPS = 16.0
_ROUNDING = _ULPS * float(np.finfo(np.float64).eps)
_SMALLEST = float(np.nextafter(0.0, 1.0))
# The range in which a free parameter is searched; every point of it gives a valid bound.
_LEAST, _MOST = 1e-300, 1e300
# The range of arguments: beyond it they are rounded to its ends, 0 or infinity, on the safe side.
_FINEST, _COARSEST = 1e-300, 1e140
# The coarsest lattice step of a mechanism in log space, in standard deviations.
_LATTICE_STEP = 2.0**-36
# Below it the Gaussian delta comes from a series, above it from a difference; either way the
# relative error stays below 1e-10.
_SMALL_MU = 5e-3


@overload
def epsilon_upper(rho: float, delta: float) -> float: ...
@overload
def epsilon_upper(rho: Numbers, delta: float | Numbers) -> FloatArray: ...
@overload
def epsilon_upper(rho: float, delta: Numbers) -> FloatArray: ...
def epsilon_upper(rho: ArrayLike, delta: ArrayLike) -> float | FloatArray:
    """Return an epsilon such that every rho-zCDP mechanism is (epsilon, delta)-DP.

    The least epsilon of Canonne, Kamath and Steinke (2020, Corollary 13), rounded up; never
    negative: 0 where delta alone covers rho.

    Parameters
    ----------
    rho
        zCDP budget in nats, at least 0; infinite is allowed and gives infinity.
    delta
        Probability in (0, 1).

    Returns
    -------
    float or ndarray of float64
        epsilon in nats.

    Raises
    ------
    ConfigurationError
        If ``rho`` is negative or not a number, or ``delta`` is outside (0, 1).
    """
    rho, delta = np.broadcast_arrays(_non_negative("rho", rho), _probability("delta", delta))
    return _unwrap(_epsilon_upper(rho, delta))


@overload
def delta_upper(rho: float, epsilon: float) -> float: ...
@overload
def delta_upper(rho: Numbers, epsilon: float | Numbers) -> FloatArray: ...
@overload
def delta_upper(rho: float, epsilon: Numbers) -> FloatArray: ...
def delta_upper(rho: ArrayLike, epsilon: ArrayLike) -> float | FloatArray:
    """Return a delta such that every rho-zCDP mechanism is (epsilon, delta)-DP.

    The least delta of Canonne, Kamath and Steinke (2020, Corollary 13), rounded up, at most 1.

    Parameters
    ----------
    rho
        zCDP budget in nats, at least 0; infinite is allowed and gives 1.
    epsilon
        Nats, at least 0; infinite is allowed and gives 0.

    Returns
    -------
    float or ndarray of float64
        delta, a probability.

    Raises
    ------
    ConfigurationError
        If ``rho`` or ``epsilon`` is negative or not a number.
    """
    rho, epsilon = np.broadcast_arrays(_non_negative("rho", rho), _non_negative("epsilon", epsilon))
    rho, epsilon = _round_up(rho), _round_down(epsilon)
    regular = (rho > 0) & (rho < np.inf) & (epsilon < np.inf)
    finite_rho, finite_epsilon = np.where(regular, rho, 1.0), np.where(regular, epsilon, 1.0)

    # With w = ln(alpha / (alpha - 1)) the best order solves rho coth(w/2) = epsilon + w. The
    # difference is convex and falls in w, so Newton from the left of the root never overshoots.
    def advance(w: FloatArray) -> FloatArray:
        tanh = np.tanh(w / 2)
        excess = finite_rho / tanh - finite_epsilon - w
        return w + excess / (finite_rho * (1 / tanh**2 - 1) / 2 + 1)

    # Left of the root, since coth(x) >= max(1, 1/x).
    start = 4 * finite_rho / (finite_epsilon + np.sqrt(finite_epsilon**2 + 8 * finite_rho))
    w = _converge(advance, np.maximum(start, finite_rho - finite_epsilon), most=690.0)
    t = 1 / np.expm1(w)
    # Corollary 13 with alpha = 1 + t: ln delta = t((1+t) rho - epsilon - ln(1 + 1/t)) - ln(1 + t).
    log1p_inverse, log1p_t = np.log1p(1 / t), np.log1p(t)
    with np.errstate(over="ignore"):
        gain = (1 + t) * finite_rho
        log_delta = t * (gain - finite_epsilon - log1p_inverse) - log1p_t
        size = t * (gain + finite_epsilon + log1p_inverse) + log1p_t
    delta = _exp_upper(log_delta, size)
    delta = np.where(rho == np.inf, 1.0, delta)
    delta = np.where((rho == 0) | (epsilon == np.inf), 0.0, delta)
    return _unwrap(delta)


@overload
def rho_lower(epsilon: float, delta: float) -> float: ...
@overload
def rho_lower(epsilon: Numbers, delta: float | Numbers) -> FloatArray: ...
@overload
def rho_lower(epsilon: float, delta: Numbers) -> FloatArray: ...
def rho_lower(epsilon: ArrayLike, delta: ArrayLike) -> float | FloatArray:
    """Return the largest rho whose ``epsilon_upper`` at ``delta`` is at most ``epsilon``.

    Rounded down: ``epsilon_upper(rho_lower(epsilon, delta), delta) <= epsilon`` always.

    Parameters
    ----------
    epsilon
        Nats, at least 0; infinite is allowed and gives infinity.
    delta
        Probability in (0, 1).

    Returns
    -------
    float or ndarray of float64
        rho in nats.

    Raises
    ------
    ConfigurationError
        If ``epsilon`` is negative or not a number, or ``delta`` is outside (0, 1).
    """
    epsilon, delta = np.broadcast_arrays(
        _non_negative("epsilon", epsilon), _probability("delta", delta)
    )
    epsilon = _round_down(epsilon)
    regular = epsilon < np.inf
    finite_epsilon: FloatArray = np.where(regular, epsilon, 1.0)
    log_inverse: FloatArray = -np.log(delta)

    # At the best order rho = (epsilon + ln(1 + 1/t)) / (1 + 2t), as in delta_upper, and
    # rho t^2 + ln(1 + t) = ln(1/delta), as in epsilon_upper; both sums rise with t.
    def advance(t: FloatArray) -> FloatArray:
        rest, share = finite_epsilon + np.log1p(1 / t), t / (2 + 1 / t)
        excess = rest * share + np.log1p(t) - log_inverse
        slope = rest * share * (2 + 2 * t) / (1 + 2 * t) - share / (1 + t) + t / (1 + t)
        return t * np.exp(-excess / slope)

    # Right of the root: each term alone is at most ln(1/delta) there.
    with np.errstate(divide="ignore", over="ignore"):
        start = (log_inverse + np.sqrt(log_inverse * (log_inverse + finite_epsilon))) / (
            finite_epsilon
        )
        start = np.minimum(start, np.expm1(log_inverse))
    t = _converge(advance, start)
    # epsilon_upper's bound solved for rho; the nudge below makes it hold after rounding.
    tail = (np.log1p(t) - log_inverse) / t
    rho = _round_down((finite_epsilon + np.log1p(1 / t) + tail) / (1 + t))
    shrink = _ROUNDING
    while np.any(too_much := _epsilon_upper(rho, delta) > finite_epsilon):
        rho = np.where(too_much, np.maximum(rho * (1 - shrink) - _SMALLEST, 0.0), rho)
        shrink = min(2 * shrink, 0.5)
    return _unwrap(np.where(regular, rho, np.inf))


@overload
def gaussian_delta_upper(mu: float, epsilon: float) -> float: ...
@overload
def gaussian_delta_upper(mu: Numbers, epsilon: float | Numbers) -> FloatArray: ...
@overload
def gaussian_delta_upper(mu: float, epsilon: Numbers) -> FloatArray: ...
def gaussian_delta_upper(mu: ArrayLike, epsilon: ArrayLike) -> float | FloatArray:
    """Return the delta of a Gaussian location family whose neighbours are mu deviations apart.

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu), exact and tight
    (Balle and Wang 2018, Theorem 8; Dong, Roth and Su 2022, Corollary 1), rounded up, at most 1.
    Enough is added, less than 1e-9 of it, for the discrete Gaussian on any lattice of 2^36 or more
    steps per deviation, which every mechanism in log space has (docs/accounting.md).

    Parameters
    ----------
    mu
        Distance of the means in standard deviations, at least 0; see ``gaussian_mu_upper``.
    epsilon
        Nats, at least 0.

    Returns
    -------
    float or ndarray of float64
        delta, a probability.

    Raises
    ------
    ConfigurationError
        If ``mu`` or ``epsilon`` is negative or not a number.
    """
    mu, epsilon = np.broadcast_arrays(_non_negative("mu", mu), _non_negative("epsilon", epsilon))
    return _unwrap(_gaussian_delta_upper(mu, epsilon))


@overload
def gaussian_epsilon_upper(mu: float, delta: float) -> float: ...
@overload
def gaussian_epsilon_upper(mu: Numbers, delta: float | Numbers) -> FloatArray: ...
@overload
def gaussian_epsilon_upper(mu: float, delta: Numbers) -> FloatArray: ...
def gaussian_epsilon_upper(mu: ArrayLike, delta: ArrayLike) -> float | FloatArray:
    """Return the least epsilon whose ``gaussian_delta_upper`` at ``mu`` is at most ``delta``.

    Rounded up: ``gaussian_delta_upper(mu, gaussian_epsilon_upper(mu, delta)) <= delta`` always.

    Parameters
    ----------
    mu
        Distance of the means in standard deviations, at least 0; infinite gives infinity.
    delta
        Probability in (0, 1).

    Returns
    -------
    float or ndarray of float64
        epsilon in nats, 0 where delta alone covers mu.

    Raises
    ------
    ConfigurationError
        If ``mu`` is negative or not a number, or ``delta`` is outside (0, 1).
    """
    mu, delta = np.broadcast_arrays(_non_negative("mu", mu), _probability("delta", delta))
    mu = _round_up(mu)
    regular = (mu > 0) & (mu < np.inf)
    finite_mu: FloatArray = np.where(regular, mu, 1.0)
    log_target: FloatArray = np.log(delta)

    # ln delta(epsilon) is concave (the privacy loss is Gaussian, hence log-concave, and delta is
    # its convolution with (1 - e^-s)_+), so Newton from the right of the root never overshoots.
    def advance(ratio: FloatArray) -> FloatArray:
        log_scale, difference, far, _ = _gaussian_parts(finite_mu, ratio - finite_mu / 2)
        excess = log_scale + np.log(difference) - log_target
        return ratio + excess * difference / (finite_mu * far)

    # delta <= Phi(mu/2 - epsilon/mu) bounds epsilon/mu from the right.
    ratio = _converge(advance, finite_mu / 2 - ndtri(delta))
    epsilon = np.where(_gaussian_delta_upper(finite_mu, np.zeros(mu.shape)) <= delta, 0.0, ratio)
    epsilon = epsilon * finite_mu
    grow = _ROUNDING
    while np.any(too_little := _gaussian_delta_upper(finite_mu, epsilon) > delta):
        with np.errstate(over="ignore"):
            wider = epsilon + grow * (epsilon + finite_mu) + _SMALLEST
        epsilon = np.where(too_little, wider, epsilon)
        grow *= 2
    return _unwrap(np.where(regular, epsilon, np.where(mu > 0, np.inf, 0.0)))


@overload
def gaussian_mu_upper(rho: float) -> float: ...
@overload
def gaussian_mu_upper(rho: Numbers) -> FloatArray: ...
def gaussian_mu_upper(rho: ArrayLike) -> float | FloatArray:
    """Return the mu = sqrt(2 rho) of the Gaussian location family with budget rho, rounded up.

    It turns a zCDP budget into mu-GDP only for the Gaussian family itself: zCDP alone implies no
    mu-GDP.

    Parameters
    ----------
    rho
        zCDP budget in nats, at least 0.

    Returns
    -------
    float or ndarray of float64
        Distance of the means in standard deviations.

    Raises
    ------
    ConfigurationError
        If ``rho`` is negative or not a number.
    """
    return _unwrap(_mu_upper(_non_negative("rho", rho)))


@overload
def gaussian_attacker_accuracy_upper(rho: float) -> float: ...
@overload
def gaussian_attacker_accuracy_upper(rho: Numbers) -> FloatArray: ...
def gaussian_attacker_accuracy_upper(rho: ArrayLike) -> float | FloatArray:
    """Return the best membership-inference accuracy against a Gaussian location family.

    Phi(mu/2) with mu = sqrt(2 rho): the attacker knows everything but one record, which is present
    with probability 1/2, and applies the Neyman-Pearson test (Dong, Roth and Su 2022). Rounded up,
    lattice included, as in ``gaussian_delta_upper``.

    Parameters
    ----------
    rho
        zCDP budget in nats, at least 0.

    Returns
    -------
    float or ndarray of float64
        Probability of a right guess, in [1/2, 1].

    Raises
    ------
    ConfigurationError
        If ``rho`` is negative or not a number.
    """
    rho = _non_negative("rho", rho)
    accuracy = ndtr(_mu_upper(rho) / 2) * (1 + _ROUNDING)
    # (1 + delta(0)) / 2, with the same allowance for delta as in gaussian_delta_upper.
    accuracy = np.minimum(accuracy + 2 * _LATTICE_STEP * (accuracy - 0.5), 1.0)
    return _unwrap(np.where(rho == 0, 0.5, accuracy))


@overload
def pure_attacker_accuracy_upper(epsilon: float) -> float: ...
@overload
def pure_attacker_accuracy_upper(epsilon: Numbers) -> FloatArray: ...
def pure_attacker_accuracy_upper(epsilon: ArrayLike) -> float | FloatArray:
    """Return the membership-inference accuracy no attack on an epsilon-DP mechanism exceeds.

    e^epsilon / (1 + e^epsilon) at equal priors; randomised response attains it (Kairouz, Oh and
    Viswanath 2015, Theorem 2.1). Other mechanisms, Laplace noise among them, stay below. Rounded
    up.

    Parameters
    ----------
    epsilon
        Nats, at least 0.

    Returns
    -------
    float or ndarray of float64
        Probability of a right guess, in [1/2, 1].

    Raises
    ------
    ConfigurationError
        If ``epsilon`` is negative or not a number.
    """
    epsilon = _non_negative("epsilon", epsilon)
    accuracy = np.minimum(expit(epsilon) * (1 + _ROUNDING), 1.0)
    return _unwrap(np.where(epsilon == 0, 0.5, accuracy))


@overload
def pure_to_rho_upper(epsilon: float) -> float: ...
@overload
def pure_to_rho_upper(epsilon: Numbers) -> FloatArray: ...
def pure_to_rho_upper(epsilon: ArrayLike) -> float | FloatArray:
    """Return a rho such that every epsilon-DP mechanism is rho-zCDP.

    rho = epsilon tanh(epsilon/2), the least such rho: randomised response attains it (Steinke
    2024, "Tight RDP & zCDP Bounds from Pure DP", Theorem 5; proof in docs/accounting.md). It is
    below the epsilon^2/2 of Bun and Steinke (2016, Proposition 1.4), by a factor of 5 at
    epsilon = 10. Rounded up.

    Parameters
    ----------
    epsilon
        Nats, at least 0.

    Returns
    -------
    float or ndarray of float64
        rho in nats.

    Raises
    ------
    ConfigurationError
        If ``epsilon`` is negative or not a number.
    """
    epsilon = _non_negative("epsilon", epsilon)
    rho = epsilon * np.tanh(epsilon / 2)
    return _unwrap(np.where(epsilon == 0, 0.0, rho * (1 + _ROUNDING) + _SMALLEST))


def _epsilon_upper(rho: FloatArray, delta: FloatArray) -> FloatArray:
    rho = _round_up(rho)
    regular = (rho > 0) & (rho < np.inf)
    finite_rho = np.where(regular, rho, 1.0)
    log_inverse = -np.log(delta)

    # With alpha = 1 + t the best order solves rho t^2 + ln(1 + t) = ln(1/delta). In ln t the left
    # side is convex and rises, so Newton from the right of the root never overshoots.
    def advance(t: FloatArray) -> FloatArray:
        quadratic = finite_rho * t * t
        excess = quadratic + np.log1p(t) - log_inverse
        return t * np.exp(-excess / (2 * quadratic + t / (1 + t)))

    # Right of the root: each term alone is at most ln(1/delta) there.
    with np.errstate(over="ignore"):
        start = np.minimum(np.sqrt(log_inverse / finite_rho), np.expm1(log_inverse))
    t = _converge(advance, start)
    # Corollary 13 solved for epsilon: (1+t) rho - ln(1 + 1/t) + (ln(1/delta) - ln(1+t))/t.
    gain, log1p_inverse, log1p_t = (1 + t) * finite_rho, np.log1p(1 / t), np.log1p(t)
    epsilon = gain - log1p_inverse + (log_inverse - log1p_t) / t
    size = gain + log1p_inverse + (log_inverse + log1p_t) / t
    epsilon = np.maximum(epsilon + _ROUNDING * size, 0.0)
    return np.where(regular, epsilon, np.where(rho > 0, np.inf, 0.0))


def _gaussian_delta_upper(mu: FloatArray, epsilon: FloatArray) -> FloatArray:
    mu, epsilon = _round_up(mu), _round_down(epsilon)
    regular = (mu > 0) & (mu < np.inf) & (epsilon < np.inf)
    finite_mu, finite_epsilon = np.where(regular, mu, 1.0), np.where(regular, epsilon, 1.0)
    with np.errstate(over="ignore"):
        ratio = finite_epsilon / finite_mu
    # delta falls in x, so x is rounded down; at 40 delta is below the smallest double.
    ratio = np.minimum(ratio, 2 * _COARSEST)
    x = ratio - finite_mu / 2 - _ROUNDING * (ratio + finite_mu / 2)
    x = np.minimum(x, 40.0)
    log_scale, difference, _, size = _gaussian_parts(finite_mu, x)
    # A discrete Gaussian 1/h lattice steps wide has at most 1 + h (2 + x) times this delta.
    lattice = 1 + _LATTICE_STEP * (2 + np.maximum(x, 0.0))
    log_difference = np.log((difference + _ROUNDING * size) * lattice)
    delta = _exp_upper(log_scale + log_difference, np.abs(log_scale) + np.abs(log_difference))
    delta = np.where(mu == np.inf, 1.0, delta)
    return np.where((mu == 0) | (epsilon == np.inf), 0.0, delta)


def _gaussian_parts(
    mu: FloatArray, x: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Split the Gaussian delta at x = epsilon/mu - mu/2 so that nothing overflows or cancels.

    Returns log_scale, difference, far and size: delta = e^log_scale difference, its derivative in
    x is -mu e^log_scale far, and size bounds the rounding error of difference in units in the
    last place.
    """
    # phi(x) = e^epsilon phi(x + mu), so delta = phi(x) (R(x) - R(x + mu)) with R the Mills ratio;
    # for x < 0, where R explodes, Phi(-x) - phi(x) R(x + mu).
    log_density = -x * x / 2 - math.log(2 * math.pi) / 2
    with np.errstate(under="ignore"):
        density = np.exp(log_density)
    inside = x < 0
    log_scale = np.where(inside, 0.0, log_density)
    near = np.where(inside, ndtr(-x), _mills(np.maximum(x, 0.0)))
    far = np.where(inside, density, 1.0) * _mills(np.maximum(x + mu, 0.0))
    difference, size = near - far, near + far

    # Small mu: R(x) - R(x + mu) = sum over k >= 1 of (-1)^(k+1) I_k mu^k / k! with
    # I_k = integral of s^k e^(-xs - s^2/2) > 0; a sum that stops at an odd k is at or above it.
    # By parts: I_0 = R(x), I_1 = 1 - x I_0, I_(k+1) = k I_(k-1) - x I_k.
    small = mu < _SMALL_MU
    base, step = np.where(small, x, 0.0), np.where(small, mu, 0.0)
    before, moment, power = _mills(base), 1 - base * _mills(base), step
    series = moment * power
    for k in range(2, 6):
        before, moment = moment, (k - 1) * before - base * moment
        power = -power * step / k
        series = series + moment * power
    series, bound = series * np.where(inside, density, 1.0), 4 * step
    return log_scale, np.where(small, series, difference), far, np.where(small, bound, size)


def _mills(x: FloatArray) -> FloatArray:
    return math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2))


def _mu_upper(rho: FloatArray) -> FloatArray:
    with np.errstate(over="ignore"):
        return np.where(rho == 0, 0.0, np.nextafter(np.sqrt(2 * rho), np.inf))


def _exp_upper(exponent: FloatArray, size: FloatArray) -> FloatArray:
    """Return e^exponent rounded up, in (0, 1]; the exponent's own terms add up to ``size``."""
    with np.errstate(under="ignore", invalid="ignore"):
        value = np.exp(np.minimum(exponent + _ROUNDING * np.minimum(size, 1e300), 0.0))
        # Subnormal values are off by a whole step, not by a share of themselves.
        value = np.where(value == 0, _SMALLEST, value * (1 + _ROUNDING) + 2 * _SMALLEST)
    return np.minimum(value, 1.0)


def _converge(
    advance: Callable[[FloatArray], FloatArray], start: FloatArray, most: float = _MOST
) -> FloatArray:
    """Iterate until no entry moves by more than 1e-9 of itself, within positive limits.

    The callers' bounds hold at every point: one that is not the best costs tightness only.
    """
    point = np.clip(start, _LEAST, most)
    for _ in range(100):
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            following = advance(point)
        following = np.where(np.isnan(following), point, np.clip(following, _LEAST, most))
        if np.all(np.abs(following - point) <= 1e-9 * point):
            return following
        point = following
    return point


def _round_up(value: FloatArray) -> FloatArray:
    value = np.where((value > 0) & (value < _FINEST), _FINEST, value)
    return np.where(value > _COARSEST, np.inf, value)


def _round_down(value: FloatArray) -> FloatArray:
    value = np.where(value < _FINEST, 0.0, value)
    return np.where((value > _COARSEST) & (value < np.inf), _COARSEST, value)


def _non_negative(name: str, value: ArrayLike) -> FloatArray:
    array = _numbers(name, value)
    if np.any(wrong := ~(array >= 0)):
        raise ConfigurationError(
            f"{name} = {array[wrong][0]} is not acceptable: expected a number of at least 0. "
            f"Pass a non-negative {name}, in nats."
        )
    return array


def _probability(name: str, value: ArrayLike) -> FloatArray:
    array = _numbers(name, value)
    if np.any(wrong := ~((array > 0) & (array < 1))):
        raise ConfigurationError(
            f"{name} = {array[wrong][0]} is not acceptable: expected a probability strictly "
            f"between 0 and 1. A {name} far below one over the number of people, such as 1e-9, is "
            f"usual; for {name} = 0 state rho itself."
        )
    return array


def _numbers(name: str, value: ArrayLike) -> FloatArray:
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"{name} is of type {type(value).__name__}: expected a number or an array of numbers."
        ) from None


def _unwrap(values: FloatArray) -> float | FloatArray:
    """Return a float for the result of plain numbers, the array otherwise."""
    return float(values) if np.ndim(values) == 0 else values


@overload
def zcdp_attacker_accuracy_upper(rho: float) -> float: ...
@overload
def zcdp_attacker_accuracy_upper(rho: Numbers) -> FloatArray: ...
def zcdp_attacker_accuracy_upper(rho: ArrayLike) -> float | FloatArray:
    """Return the membership-inference accuracy no attack on a rho-zCDP mechanism exceeds.

    (1 + TV) / 2 at equal priors, with the total variation distance bounded through the
    Kullback-Leibler divergence, which is at most rho, by Pinsker's inequality and by that of
    Bretagnolle and Huber (1979): TV <= min(sqrt(rho / 2), sqrt(1 - e^-rho)). Rounded up.

    Parameters
    ----------
    rho
        zCDP budget in nats, at least 0.

    Returns
    -------
    float or ndarray of float64
        Probability of a right guess, in [1/2, 1].

    Raises
    ------
    ConfigurationError
        If ``rho`` is negative or not a number.
    """
    rho = _non_negative("rho", rho)
    distance = np.minimum(np.sqrt(rho / 2), np.sqrt(-np.expm1(-rho)))
    return _unwrap(np.minimum((0.5 + distance / 2) * (1 + _ROUNDING), 1.0))

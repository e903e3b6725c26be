"""Reports of the local model: epsilon-DP for each of them, by exact integers.

A report's probabilities are whole multiples of 2**-64, so the likelihood ratio of any two values
is a ratio of integers, and it is at most e**epsilon exactly (docs/local-model.md).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from spark_dphist.errors import ConfigurationError, did_you_mean
from spark_dphist.mechanisms.exact_bits import WordSource
from spark_dphist.mechanisms.grid import exponential_lower
from spark_dphist.mechanisms.partition_selection import as_written, check_range

EPSILON_RANGE = (2.0**-10, 32.0)
# A unary report has a bit for each category.
MAX_CATEGORIES = 10_000

_WORD = 1 << 64

ResponseName = Literal[
    "local_randomised_response",
    "local_symmetric_unary_encoding",
    "local_optimised_unary_encoding",
]


@dataclass(frozen=True, kw_only=True)
class LocalResponse(ABC):
    """A randomised report of one value out of several.

    Parameters
    ----------
    epsilon
        Of each report, in nats, from 2**-10 to 32. A double means its shortest decimal text.
    categories
        How many values there are, from 2 to 10,000.

    Raises
    ------
    ConfigurationError
        If a parameter is out of its range.

    Notes
    -----
    Privacy Guarantee: for any two values and any report, the probabilities of the report differ by
    a factor of at most e**epsilon, exactly. That a report was made is not hidden.
    """

    epsilon: float
    categories: int

    def __post_init__(self) -> None:
        check_range("epsilon", self.epsilon, EPSILON_RANGE)
        if type(self.categories) is not int or not 2 <= self.categories <= MAX_CATEGORIES:
            raise ConfigurationError(
                f"categories must be a whole number from 2 to {MAX_CATEGORIES:,}, got "
                f"{self.categories!r}"
            )

    @property
    @abstractmethod
    def response_name(self) -> ResponseName:
        """The name that audits and ledgers know it by."""

    @property
    @abstractmethod
    def support_numerators(self) -> tuple[int, int]:
        """2**64 times the probabilities that a report supports its value, and each other one."""

    @property
    def support_probabilities(self) -> tuple[Fraction, Fraction]:
        """The probabilities p and q that a report supports its value, and each other one."""
        own, other = self.support_numerators
        return Fraction(own, _WORD), Fraction(other, _WORD)

    @property
    @abstractmethod
    def likelihood_ratio(self) -> Fraction:
        """The greatest ratio of a report's probabilities under two values; at most e**epsilon."""

    @abstractmethod
    def report(
        self, category: npt.NDArray[np.int64], source: WordSource
    ) -> npt.NDArray[np.int64] | npt.NDArray[np.bool_]:
        """Draw the report of each value, exactly with the stated probabilities.

        Parameters
        ----------
        category
            Positions of the values (confidential), shape (reports,), from 0 to categories - 1.
        source
            Words of row i decide about report i.
        """

    def parameters(self) -> dict[str, Any]:
        """Return the public parameters, JSON values."""
        own, other = self.support_probabilities
        return {
            "model": "local",
            "epsilon_per_report": self.epsilon,
            "categories": self.categories,
            "p": float(own),
            "q": float(other),
        }

    def _checked(self, category: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if category.size and not 0 <= int(category.min()) <= int(category.max()) < self.categories:
            # The value itself is confidential.
            raise ConfigurationError(
                f"a category lies outside 0 to {self.categories - 1}, so nothing was reported"
            )
        return category


@dataclass(frozen=True, kw_only=True)
class RandomisedResponse(LocalResponse):
    """k-ary randomised response: the value itself, or any of the others.

    A report is a category: the true one with probability p, each other one with q. (Wang, Blocki,
    Li, Jha 2017, "Direct Encoding"; Kairouz, Bonawitz, Ramage 2016.)
    """

    name: ClassVar[ResponseName] = "local_randomised_response"

    @property
    def response_name(self) -> ResponseName:
        """The name that audits and ledgers know it by."""
        return self.name

    @cached_property
    def support_numerators(self) -> tuple[int, int]:
        """2**64 p and 2**64 q: q = 1 / (e**epsilon + d - 1), rounded up; p is the rest."""
        growth = exponential_lower(as_written(self.epsilon))
        other = math.ceil(_WORD / (growth + self.categories - 1))
        return _WORD - (self.categories - 1) * other, other

    @property
    def likelihood_ratio(self) -> Fraction:
        """The ratio p / q."""
        return Fraction(*self.support_numerators)

    def report(self, category: npt.NDArray[np.int64], source: WordSource) -> npt.NDArray[np.int64]:
        """Return a category for each value, int64 of shape (reports,)."""
        rows = np.arange(self._checked(category).size, dtype=np.int64)
        words = source.block(rows, 0)[:, 0]
        _, other = self.support_numerators
        # Each other category has as many words as `other` says, the value itself all the rest.
        position = words // np.uint64(other)
        lies = position < self.categories - 1
        others = np.where(lies, position, np.uint64(0)).astype(np.int64)
        return np.where(lies, others + (others >= category), category)


@dataclass(frozen=True, kw_only=True)
class UnaryEncoding(LocalResponse):
    """One bit for each category, each noised for itself.

    The bit of the value is set with probability p, each other bit with q. Symmetric (basic RAPPOR:
    Erlingsson, Pihur, Korolova 2014): q = 1 / (e**(epsilon/2) + 1), p = 1 - q. Optimised (Wang,
    Blocki, Li, Jha 2017, "OUE"): p = 1/2, q = 1 / (e**epsilon + 1), the least variance of rare
    values.

    Parameters
    ----------
    optimised
        Which of the two.
    """

    optimised: bool

    @property
    def response_name(self) -> ResponseName:
        """The name that audits and ledgers know it by."""
        if self.optimised:
            return "local_optimised_unary_encoding"
        return "local_symmetric_unary_encoding"

    @cached_property
    def support_numerators(self) -> tuple[int, int]:
        """2**64 p and 2**64 q, q rounded up."""
        exponent = as_written(self.epsilon) / (1 if self.optimised else 2)
        other = math.ceil(_WORD / (exponential_lower(exponent) + 1))
        return (_WORD // 2 if self.optimised else _WORD - other), other

    @property
    def likelihood_ratio(self) -> Fraction:
        """The ratio p (1 - q) / ((1 - p) q), of the two bits in which two values differ."""
        own, other = self.support_numerators
        return Fraction(own, _WORD - own) * Fraction(_WORD - other, other)

    def report(self, category: npt.NDArray[np.int64], source: WordSource) -> npt.NDArray[np.bool_]:
        """Return the bits of each value, bool of shape (reports, categories)."""
        rows = np.arange(self._checked(category).size, dtype=np.int64)
        own, other = (np.uint64(each) for each in self.support_numerators)
        bits = np.empty((rows.size, self.categories), dtype=np.bool_)
        for first in range(0, self.categories, 2):
            words = source.block(rows, first // 2)
            for position in range(first, min(first + 2, self.categories)):
                limit = np.where(category == position, own, other)
                bits[:, position] = words[:, position - first] < limit
        return bits


def local_response(name: ResponseName, *, epsilon: float, categories: int) -> LocalResponse:
    """Return the response of this name.

    Raises
    ------
    ConfigurationError
        If there is none, or a parameter is out of its range.
    """
    if name == "local_randomised_response":
        return RandomisedResponse(epsilon=epsilon, categories=categories)
    if name not in get_args(ResponseName):
        raise ConfigurationError(
            f"no local response is called {name!r}. {did_you_mean(name, get_args(ResponseName))}"
        )
    optimised = name == "local_optimised_unary_encoding"
    return UnaryEncoding(epsilon=epsilon, categories=categories, optimised=optimised)

"""What a release costs: Theorem 2 of the paper, and the same for other feature sets and accountings.

At step k the release is Z_k = g_k sum_i f_i + N(0, I_d), with a weight g_k >= 0 that all sensors share and
features f_i in a set F. Two neighbouring data sets move its mean by at most Delta, so that its Rényi loss is
alpha Delta^2 / 2 (Mironov 2017, Prop. 7 in v3). One whole number c, the charge factor, holds all that
differs:

    L_k = alpha c g_k^2 / 2            total accounting: Delta^2 = c g_k^2, the worst sensor there could be
    L_k(i) = alpha c |c_i|^2 / 2       individual accounting: c_i is what sensor i adds itself

| c | box [0,1]^d | ball, signed | orthant: its non-negative part |
|---|---|---|---|
| total, remove-one: the largest squared norm in F | d | 1 | 1 |
| total, replace-one: the squared diameter of F | d | 4 | 2 (1 where d = 1) |
| individual, remove-one | 1 | 1 | 1 |
| individual, replace-one | 2 | 4 | 2 |

The last two rows are about whole paths. Given the past releases, a sensor's payments depend on its own data
only (Feldman and Zrnic 2021), so on every path both neighbours keep sum_k c |c_k|^2 <= 2 B / alpha, and the
squared distances between them add up to at most sum_k |c_k - c'_k|^2 <= sum_k c (|c_k|^2 + |c'_k|^2) / 2:
with c = 2 where no entry is negative (the scalar product is not either), with c = 4 in general. Removal
compares with c'_k = 0.
"""

from __future__ import annotations

from typing import Literal, overload

from dpfuse import _check
from dpfuse._arrays import Floats
from dpfuse.types import ACCOUNTINGS, ADJACENCIES, Accounting, Adjacency

FeatureSet = Literal["box", "ball", "orthant"]

FEATURE_SETS: tuple[FeatureSet, ...] = ("box", "ball", "orthant")


def charge_factor(features: FeatureSet, dimension: int, adjacency: Adjacency, accounting: Accounting) -> int:
    """The whole number c by which a squared weight (total) or contribution (individual) is charged.

    **Guarantees**
        - Unit and adjacency: one sensor's whole trajectory, replaced by another or removed.
        - With continuous or discrete Gaussian noise of standard deviation 1, a release of loss alpha c g^2 /
          2 is (alpha, that)-RDP at every order alpha > 1. No smaller number would do: some pair of sensors
          attains it.
        - Assumes that the features are in the set whatever was measured, and that a sensor's features depend
          on its own data and past releases alone. An absent sensor adds 0.
    """
    _check.is_one_of("features", features, FEATURE_SETS)
    _check.is_count("dimension", dimension)
    _check.is_one_of("adjacency", adjacency, ADJACENCIES)
    _check.is_one_of("accounting", accounting, ACCOUNTINGS)
    if accounting == "total" and features == "box":
        return int(dimension)
    if adjacency == "remove-one":
        return 1
    if features == "ball":
        return 4
    return 1 if accounting == "total" and dimension == 1 else 2


@overload
def renyi_loss(order: float, factor: int, weight: float) -> float: ...
@overload
def renyi_loss(order: float, factor: int, weight: Floats) -> Floats: ...
def renyi_loss(order: float, factor: int, weight: float | Floats) -> float | Floats:
    """The Rényi loss alpha c g^2 / 2 of one release (Theorem 2).

    Args:
        order: the Rényi order alpha.
        factor: the charge factor c.
        weight: g_k in noise standard deviations, or the length of a sensor's contribution (individual).
    """
    return order * factor * weight**2 / 2


@overload
def largest_weight(order: float, factor: int, budget_left: float) -> float: ...
@overload
def largest_weight(order: float, factor: int, budget_left: Floats) -> Floats: ...
def largest_weight(order: float, factor: int, budget_left: float | Floats) -> float | Floats:
    """The clip of Theorem 2, sqrt(2 s / (alpha c)): a release of this weight spends all that is left.

    A plain float, to design and to plot with: what is enforced is the integer filter of `privacy.budget`.
    """
    return (2 * budget_left / (order * factor)) ** 0.5

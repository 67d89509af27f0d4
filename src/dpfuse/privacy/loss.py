"""The Rényi loss of a release: Theorem 2 of the paper, extended to other feature sets and to individual accounting.

At step k the release is Z_k = g_k sum_i f_i + N(0, I_d). All sensors share the weight g_k >= 0, and their features f_i
are in a set F. Two neighbouring data sets move the mean of Z_k by at most Delta, so the Rényi loss is alpha Delta^2 / 2
(Mironov 2017, Prop. 7 in v3). The cases differ in one whole number only, the charge factor c:

    L_k = alpha c g_k^2 / 2            total accounting: Delta^2 = c g_k^2, for the worst possible sensor
    L_k(i) = alpha c |c_i|^2 / 2       individual accounting: c_i = g_k f_i is the contribution of sensor i

| c | box [0,1]^d | ball, signed | orthant: the non-negative part of the ball |
|---|---|---|---|
| total, remove-one: the largest squared norm in F | d | 1 | 1 |
| total, replace-one: the squared diameter of F | d | 4 | 2 (1 where d = 1) |
| individual, remove-one | 1 | 1 | 1 |
| individual, replace-one | 2 | 4 | 2 |

The last two rows hold for whole paths of releases. Given the past releases, the payments of a sensor depend on its own
data only (Feldman and Zrnic 2021). So on every path both neighbours keep sum_k c |c_k|^2 <= 2 B / alpha, and their
squared distances add up to sum_k |c_k - c'_k|^2 <= sum_k c (|c_k|^2 + |c'_k|^2) / 2. This holds with c = 2 where no
entry is negative, as the scalar product is then not negative either, and with c = 4 in general. In remove-one c'_k is
0 throughout.
"""

from __future__ import annotations

from typing import Literal, overload

from dpfuse import _check
from dpfuse._arrays import Floats
from dpfuse.guarantee import ACCOUNTINGS, ADJACENCIES, Accounting, Adjacency

FeatureSet = Literal["box", "ball", "orthant"]

FEATURE_SETS: tuple[FeatureSet, ...] = ("box", "ball", "orthant")


def charge_factor(features: FeatureSet, dimension: int, adjacency: Adjacency, accounting: Accounting) -> int:
    """The charge factor c of a squared weight (total) or of a squared contribution (individual).

    **Guarantees**
        - Unit: the whole trajectory of one sensor, replaced by another one or removed.
        - With continuous or discrete Gaussian noise of standard deviation 1, a release is (alpha, L)-RDP at every order
          alpha > 1. Total accounting: L = alpha c g^2 / 2 for the weight g. Individual accounting:
          L = alpha c |c_i|^2 / 2 for the contribution c_i of the sensor; for replace-one this holds over whole paths.
        - c is the smallest such number: some pair of sensors attains the bound.
        - Assumes that features are in the set for any measurement, and that the features of a sensor depend on its
          own data and past releases alone. An absent sensor adds 0.
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
        weight: g_k in noise standard deviations; in individual accounting the length of one contribution.
    """
    return order * factor * weight**2 / 2


@overload
def largest_weight(order: float, factor: int, budget_left: float) -> float: ...
@overload
def largest_weight(order: float, factor: int, budget_left: Floats) -> Floats: ...
def largest_weight(order: float, factor: int, budget_left: float | Floats) -> float | Floats:
    """The clip of Theorem 2, sqrt(2 s / (alpha c)): a release of this weight spends all the budget left.

    A float, for design and plots; the integer filters of `privacy.budget` enforce the budget.
    """
    return (2 * budget_left / (order * factor)) ** 0.5

"""The figure of an audit: scores in both worlds, and the trade-off curve of each attack against the claimed one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dpfuse._arrays import Floats
from dpfuse.audit.attacks import Attack
from dpfuse.audit.audit import Audit
from dpfuse.privacy.conversion import mu_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colour-blind safe (Okabe and Ito), as in the other figures.
_ONE, _OTHER, _CLAIM = "#D55E00", "#0072B2", "black"


def plot_audit(result: Audit) -> Figure:
    """The figure, with a row for each attack: its scores in both worlds, and the errors of every threshold test."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4 * len(result.attacks)), layout="constrained")
    axes = figure.subplots(len(result.attacks), 2, squeeze=False)
    mu = mu_of(result.guarantee.order, result.guarantee.budget)
    for (left, right), attack in zip(axes, result.attacks, strict=True):
        _plot_scores(left, attack, mu)
        _plot_errors(right, attack, result, mu)
    axes[-1, 0].set_xlabel("log-likelihood ratio of the whole transcript")
    axes[-1, 1].set_xlabel("false alarms: canary reported in the neighbouring world")
    for axis in axes.ravel():
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def _plot_scores(axis: Axes, attack: Attack, mu: float) -> None:
    low, high = (end * (mu**2 / 2 + 4.5 * mu) for end in (-1, 1))
    bins = np.linspace(low, high, 46).tolist()
    for scores, colour, name in [(attack.scores, _ONE, "canary"), (attack.other_scores, _OTHER, "neighbour")]:
        axis.hist(np.clip(scores, low, high), bins, color=colour, alpha=0.5, density=True, label=name)
    grid = np.linspace(low, high, 400)
    for sign in (1, -1):
        density = np.exp(-((grid - sign * mu**2 / 2) ** 2) / (2 * mu**2)) / (mu * np.sqrt(2 * np.pi))
        axis.plot(grid, density, color=_CLAIM, linewidth=1, label="whole budget spent" if sign > 0 else None)
    axis.set(ylabel="density", title=f"scores, {attack.name}")
    axis.legend(frameon=False, fontsize=8)


def _plot_errors(axis: Axes, attack: Attack, result: Audit, mu: float) -> None:
    from scipy.stats import norm

    false_alarms = np.linspace(0, 1, 401)
    axis.fill_between(false_alarms, 0, norm.cdf(norm.isf(false_alarms) - mu), color="0.9", label="ruled out")
    axis.plot(false_alarms, norm.cdf(norm.isf(false_alarms) - mu), color=_CLAIM, linewidth=1, label="claimed")
    axis.step(*_errors(attack), where="post", color=_ONE, linewidth=1.2, label="found")
    share = attack.epsilon_bound / result.epsilon_claimed
    title = f"epsilon at least {attack.epsilon_bound:.2f} of {result.epsilon_claimed:.2f} ({share:.0%})"
    axis.set(xlim=(0, 1), ylim=(0, 1), ylabel="misses: canary not reported", title=title, aspect="equal")
    axis.legend(frameon=False, fontsize=8)


def _errors(attack: Attack) -> tuple[Floats, Floats]:
    """The two error rates of every threshold, in order of false alarms."""
    thresholds = np.concatenate([[np.inf], np.sort(np.concatenate([attack.scores, attack.other_scores]))[::-1]])
    others, own = np.sort(attack.other_scores), np.sort(attack.scores)
    false_alarms = 1 - np.searchsorted(others, thresholds, side="left") / len(others)
    misses = np.searchsorted(own, thresholds, side="left") / len(own)
    return false_alarms, misses

"""Reports for a live centre, and releases that do not depend on them."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from dpfuse.privacy import GRID, release
from dpfuse.public import Published

STREAMS = ("north", "south", "west")


@contextmanager
def held_releases(seed=0):
    """Makes all releases independent of what the sensors add, and yields what each sensor adds in each step.

    What a sensor adds may depend on past releases, which depend on all sensors. Two runs can be compared sensor by
    sensor only if their releases are the same. The list has a {(stream, id): row of integers} for each step.
    """
    rng, steps, now = np.random.default_rng(seed), [], {}
    own_sum, own_charge = release.sum_by_stream, release.Mechanism.charge_many

    def sum_by_stream(rows, stream, num_streams):
        now["rows"] = rows.copy()
        return own_sum(rows, stream, num_streams)

    def charge_many(self, accounts, weights, stream, ids, values):
        charged = own_charge(self, accounts, weights, stream, ids, values)
        owners = list(zip(stream.tolist(), np.asarray(ids).tolist(), strict=True))
        rows = list(map(tuple, now["rows"].tolist()))
        steps.append(dict(zip(owners[::-1], rows[::-1], strict=True)))  # of a sensor's rows the first
        return charged

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(release, "sum_by_stream", sum_by_stream)
        patch.setattr(release.Mechanism, "charge_many", charge_many)
        patch.setattr(release, "add_noise", lambda total, noise: rng.integers(-2 * GRID, 2 * GRID, size=len(total)))
        yield steps


def reports(num_sensors=5, num_steps=4, seed=0):
    """Random measurements, shape (num_steps, num_sensors, 2)."""
    return np.random.default_rng(seed).uniform(-1, 1, size=(num_steps, num_sensors, 2))


def public_part(published: Published):
    """What a step made public, without stream, step and hash."""
    return published.row.fusion_weight, published.row.release, published.mean, published.std

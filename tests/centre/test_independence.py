"""What a sensor adds does not depend on other sensors, in several streams and calls of the compiled step."""

from __future__ import annotations

import numpy as np

import dpfuse
from dpfuse.centre import centre as centre_module
from dpfuse.policy.filters import GuidedFilter
from support.centres import STREAMS, held_releases, reports

# 900 rows: several calls of the compiled step.
IDS = np.random.default_rng(1).integers(0, 2**62, size=900)
STREAM = np.arange(900) % 3


def run_three_steps(design, open_centre, name, change=lambda block, step: block):
    centre = open_centre(design, name, STREAMS)
    values = reports(900, num_steps=3)
    with held_releases() as steps:
        for step in range(3):
            present = np.random.default_rng(step).random(900) < 0.9
            block = change((STREAM[present], IDS[present], values[step][present]), step)
            centre.receive_many(block[0], block[1], centre.now, block[2])
            centre.tick()
    return steps


def without(sensor):
    return lambda block, step: tuple(part[block[1] != sensor] for part in block)


def shuffled(block, step):
    order = np.random.default_rng(step + 10).permutation(len(block[1]))
    return tuple(part[order] for part in block)


def only_half(block, step):
    return tuple(part[block[1] % 2 == 0] for part in block)


def crowded(block, step):
    """Two thousand more, half of them in another stream too, who send nonsense."""
    rng = np.random.default_rng(step)
    more = rng.integers(0, 3, 2000), rng.integers(2**62, 2**63 - 1, 2000), rng.normal(0, 1e30, (2000, 2))
    return tuple(np.concatenate([extra, part]) for extra, part in zip(more, block, strict=True))


def test_no_sensor_changes_what_another_adds(design, open_centre):
    before = run_three_steps(design, open_centre, "before.db")
    assert sum(any(row) for step in before for row in step.values()) > 2000
    changes = {"gone": without(IDS[450]), "shuffled": shuffled, "half": only_half}
    for name, change in (changes | {"crowded": crowded}).items():
        after = run_three_steps(design, open_centre, f"{name}.db", change)
        for one, two in zip(before, after, strict=True):
            shared = set(one) & set(two)
            assert len(shared) > 300 and all(one[owner] == two[owner] for owner in shared), name


def test_a_mean_over_sensors_would_be_detected(design, open_centre, monkeypatch):
    """Negative control. It needs programs that are compiled with the change."""
    monkeypatch.setattr(centre_module, "ExactStep", dpfuse.ExactStep)
    own = GuidedFilter.read

    def centred(self, encoded, present, readout):
        features = own(self, encoded, present, readout)
        return 0.5 * (features - features.mean(-2, keepdims=True))

    monkeypatch.setattr(GuidedFilter, "read", centred)
    before = run_three_steps(design, open_centre, "before.db")
    after = run_three_steps(design, open_centre, "after.db", without(IDS[450]))
    assert any(one[owner] != row for one, two in zip(before, after, strict=True) for owner, row in two.items())

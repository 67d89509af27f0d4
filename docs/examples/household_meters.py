"""Your own system in one file: the load of a neighbourhood, from smart meters that keep their secrets.

A hundred homes, half of them with a meter that reports its power once a minute for an hour. The grid operator wants two
numbers every minute: the load of the whole neighbourhood, and how much of it charges cars. `docs/own-system.md` walks
through this file. Run it with `python docs/examples/household_meters.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import dpfuse
from dpfuse.evaluation.text import to_text

HOMES, METERS, MINUTES, CHARGER_KW = 100, 50, 60, 7.0
# Of each channel: what the fuse of a home allows, and no or yes. Known without looking at anybody's data.
LOWEST, HIGHEST = (0.0, 0.0), (12.0, 1.0)


def simulate_evenings(num_evenings: int, seed: int = 0) -> dpfuse.Trajectories:
    """Independent evenings: state (load, load of cars) in kW, measurements (power in kW, has a charger)."""
    rng = np.random.default_rng(seed)
    shape = (num_evenings, MINUTES, HOMES)
    weather = wander(rng, (num_evenings, MINUTES, 1), memory=240)
    habits = wander(rng, shape, memory=20)
    size = rng.lognormal(0.0, 0.4, (num_evenings, 1, HOMES))
    household = 0.8 * size * np.exp(0.4 * weather + 0.5 * habits)

    price = wander(rng, (num_evenings, MINUTES, 1), memory=120)
    has_charger = np.broadcast_to(rng.random((num_evenings, 1, HOMES)) < 0.4, shape)
    is_charging = np.zeros(shape, bool)
    is_charging[:, 0] = rng.random((num_evenings, HOMES)) < 0.3
    for k in range(1, MINUTES):
        chance = np.where(is_charging[:, k - 1], 1 - 1 / 45, 0.02 * np.exp(price[:, k]))
        is_charging[:, k] = rng.random((num_evenings, HOMES)) < chance
    cars = CHARGER_KW * (is_charging & has_charger)

    power = household + cars
    return dpfuse.Trajectories(
        state=np.stack([power.sum(-1), cars.sum(-1)], axis=-1),
        measurements=np.stack([power, has_charger], axis=-1)[:, :, :METERS],
        present=rng.random((num_evenings, MINUTES, METERS)) < 0.98,
        interval_s=60.0,
    )


def wander(rng: np.random.Generator, shape: tuple[int, ...], memory: float) -> np.ndarray:
    """Numbers of variance 1 that change slowly along axis 1, over about `memory` steps."""
    x = rng.standard_normal(shape)
    keep = np.exp(-1 / memory)
    for k in range(1, shape[1]):
        x[:, k] = keep * x[:, k - 1] + np.sqrt(1 - keep**2) * x[:, k]
    return x


def main(arguments: Sequence[str] | None = None) -> None:
    """Design a classical and an individual mechanism for the meters, compare them, and release a first minute."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=400, help="gradient steps for each design")
    parser.add_argument("--evenings", type=int, default=500, help="evenings to simulate")
    options = parser.parse_args(arguments)

    dpfuse.use_all_cores()
    evenings = simulate_evenings(options.evenings)
    training, validation, test = evenings.split((0.6, 0.1, 0.3), by="run")

    designs = {}
    for name, spending, accounting in [("classical", "constant", "total"), ("individual", "adaptive", "individual")]:
        designs[name] = dpfuse.train(
            training,
            validation,
            dpfuse.Guarantee(order=2, budget=0.1, adjacency="remove-one", accounting=accounting),
            spending=spending,
            architecture=dpfuse.Architecture(measurement_range=(LOWEST, HIGHEST)),
            optimisation=dpfuse.Optimisation(num_updates=options.updates),
            progress=True,
        )

    reports = {name: dpfuse.evaluate(design, test) for name, design in designs.items()}
    gain = dpfuse.compare(reports["individual"], reports["classical"])
    print(to_text(reports, {"individual": gain}, "classical"))
    print("\n" + reports["individual"].statement)

    step = dpfuse.ExactStep(designs["individual"], num_rows=METERS)
    carry = step.init()
    carry, charged = step.contribute(carry, test.sensors[0, 0], test.measurements[0, 0], test.present[0, 0])
    released = step.release(charged)
    carry, estimate = step.estimate(carry, released)
    print(f"\nThe first minute: load {estimate.mean[0, 0]:.0f} kW, of which cars {estimate.mean[0, 1]:.0f} kW.")


if __name__ == "__main__":
    main()

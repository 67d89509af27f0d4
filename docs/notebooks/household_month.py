# %% [markdown]
# # Household meters for a month
#
# Meters of forty households. The grid wants their mean demand every two hours, for a month. A household stays, unlike a vehicle, so
# the budget must last for all 360 releases. Two ways to give the same guarantee are compared: one budget for the month, or a thirtieth of
# it for every day.

# %%
# %matplotlib inline
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

import dpfuse
from dpfuse import data, privacy
from dpfuse.evaluation import figures

# %% [markdown]
# ## Files in a published layout
#
# `dpfuse.data.meters` reads the layout of Low Carbon London: `LCLid`, `stdorToU`, `DateTime` and energy in each half hour. This cell
# writes simulated households in it, two years long; [Published recordings](../recordings.md) says where the real ones are.

# %%
rng, days, homes = np.random.default_rng(0), 730, 40


def wander(memory, *shape):
    """Numbers of variance 1 that change slowly along the first axis."""
    x, keep = rng.standard_normal(shape), np.exp(-1 / memory)
    for k in range(1, len(x)):
        x[k] = keep * x[k - 1] + np.sqrt(1 - keep**2) * x[k]
    return x


half_hours = np.arange(48 * days)
daily = 0.5 * np.sin(2 * np.pi * (half_hours / 48 - 0.4)) + 0.3 * np.sin(4 * np.pi * (half_hours / 48 - 0.1))
level = -1.8 + daily + 0.35 * wander(48 * 3, len(half_hours))
energy = np.exp(level[:, None] + 0.4 * rng.standard_normal(homes) + 0.6 * wander(6, len(half_hours), homes))
times = (np.datetime64("2012-01-01T00:00") + 30 * half_hours).astype("datetime64[s]")
table = pa.table(
    {
        "LCLid": np.tile([f"MAC{home:06d}" for home in range(homes)], len(half_hours)),
        "stdorToU": ["Std"] * energy.size,
        "DateTime": pa.array(np.repeat(times, homes)).cast(pa.string()),
        "KWH/hh (per half hour) ": energy.ravel().round(3),
    }
)
Path("meters").mkdir(exist_ok=True)
csv.write_csv(table, "meters/households.csv")

# %% [markdown]
# ## The recording
#
# Steps of two hours. The state is the mean demand of the households, in kW, and each measures its own.

# %%
read = data.meters("meters", interval_s=7200)
print(read.summary.to_text())
training, validation, test = read.trajectories.split((0.7, 0.15, 0.15))

# %% [markdown]
# ## One guarantee, two ways to give it
#
# Rényi budgets of one order add up. So thirty days with 0.05 each cost a household the same as a month with 1.5.

# %%
month, per_day = 1.5, 1.5 / 30
print(f"for the month: epsilon {privacy.epsilons(2.0, month, 1e-5)['gdp']:.2f} at delta 1e-5")
print(f"for a day:     epsilon {privacy.epsilons(2.0, per_day, 1e-5)['gdp']:.2f}")


def train(budget, horizon):
    guarantee = dpfuse.Guarantee(order=2, budget=budget, adjacency="remove-one", accounting="individual")
    settings = dpfuse.Optimisation(num_updates=300)
    return dpfuse.train(training, validation, guarantee, horizon=horizon, optimisation=settings)


designs = {"for a month": train(month, 360), "for a day": train(per_day, 12)}

# %% [markdown]
# ## What the grid sees
#
# Both are tested on the last months. The day's design starts anew every midnight, with fresh accounts and no memory; the month's design
# may save budget and remember.

# %%
reports = {name: dpfuse.evaluate(design, test, stride=12) for name, design in designs.items()}
for name, report in reports.items():
    print(f"{name}: squared error {report.mse:.5f} kW^2, without releases {report.prior_mse:.5f}")
    print(f"  most spent by a household in its period: {report.budget_spent_max:.4f} of {report.guarantee.budget:g}")

# %%
figures.plot_estimates({"for a month": designs["for a month"]}, test, state_name="mean [kW]", duration_s=30 * 86400)

# %%
figures.plot_budget({"for a month": reports["for a month"]})

# %% [markdown]
# ## What to tell the households
#
# The statement names the unit, the neighbours, the budget and what is assumed:

# %%
print(reports["for a month"].statement)

# %% [markdown]
# The next month is a second budget. A service that runs for a year has twelve of them, and should say so from the start.
# A guarantee with [periods](../guarantee.md#periods) renews the budget at public boundaries and runs without end.

# %% [markdown]
# # Your own table
#
# Sixty homes report room temperature and heating power every five minutes. The heating network wants to know the mean power of all
# homes. What there is, is a CSV file, and it is not clean. This page leads from the file to a design that is trained, evaluated, plotted
# and saved. At the end, the same in three commands.

# %%
# %matplotlib inline
import numpy as np
import pandas as pd

import dpfuse
from dpfuse.evaluation import figures
from dpfuse.evaluation.text import to_text

# %% [markdown]
# ## The file
#
# This cell makes a file of 20 days, as a stand-in for yours. It has ids such as `home-17`, lost rows, rows that come twice, rows
# that come late, and readings that are missing.

# %%
rng = np.random.default_rng(0)
times, homes = pd.date_range("2026-01-05", periods=20 * 288, freq="5min"), 60
weather = np.zeros(len(times))
for k in range(1, len(times)):
    weather[k] = 0.995 * weather[k - 1] + 0.1 * rng.standard_normal()
day = np.cos(2 * np.pi * np.arange(len(times)) / 288)
need = 2.0 + 0.5 * day[:, None] + 0.5 * weather[:, None] + 0.4 * rng.standard_normal((1, homes))
is_on = rng.random((len(times), homes)) < np.clip(need / 4, 0.05, 0.95)
power = 4.0 * is_on * rng.uniform(0.8, 1.2, is_on.shape)
rows = pd.DataFrame(
    {
        "when": np.repeat(times, homes),
        "home": np.tile([f"home-{number:02d}" for number in range(homes)], len(times)),
        "power": power.ravel().round(3),
        "room": (20.5 + 0.3 * is_on + 0.2 * rng.standard_normal(is_on.shape)).ravel().round(1),
    }
)
rows["mean_power"] = np.repeat(power.mean(1).round(4), homes)
rows.loc[rng.random(len(rows)) < 0.001, "room"] = np.nan
rows = rows[rng.random(len(rows)) > 0.02]
rows = pd.concat([rows, rows.sample(200, random_state=1)])
rows.to_csv("homes.csv", index=False)
rows.head()

# %% [markdown]
# ## From the table to a recording
#
# Name the columns. Here a column holds the state; `state="mean:power"` would compute it from the rows. The summary counts everything
# that was found and what was done about it. [The rules](../own-system.md#from-a-table) are fixed.

# %%
table = pd.read_csv("homes.csv", parse_dates=["when"])
data = dpfuse.Trajectories.from_table(table, time="when", sensor="home", values=["power", "room"], state="mean_power")

# %% [markdown]
# ## Train and evaluate
#
# A window is eight hours. Two designs have the same guarantee: the classical one spends the budget evenly; the other one by past
# releases, and each home pays for what it adds.
#
# The columns of 95% intervals are empty here. Neighbouring windows are alike, so intervals are over blocks of two windows, 16 hours, and
# need eight blocks at least. The test part, the last tenth of the recording, has two days; that of two months would have enough.

# %%
training, validation, test = data.split()
settings = dpfuse.Optimisation(num_updates=300)
designs = {}
for name, spending, accounting in [("classical", "constant", "total"), ("individual", "adaptive", "individual")]:
    guarantee = dpfuse.Guarantee(order=2, budget=0.5, adjacency="remove-one", accounting=accounting)
    designs[name] = dpfuse.train(training, validation, guarantee, spending=spending, horizon=96, optimisation=settings)
reports = {name: dpfuse.evaluate(design, test, stride=24) for name, design in designs.items()}
gain = dpfuse.compare(reports["individual"], reports["classical"])
print(to_text(reports, {"individual": gain}, "classical"))

# %%
figures.plot_estimates(designs, test, state_name="mean power [kW]", duration_s=2 * 8 * 3600)

# %%
figures.plot_calibration(reports)

# %% [markdown]
# ## Keep results and design
#
# A report becomes a DataFrame with one row for each step, or a CSV, JSON or Parquet file.

# %%
designs["individual"].save("homes.dpfuse", report=reports["individual"])
reports["individual"].save("individual.csv")
reports["individual"].to_frame().head()

# %% [markdown]
# ## The same in three commands
#
# ```sh
# dpfuse train homes.csv --time when --sensor home --values power,room --state mean_power --budget 0.5 --adjacency remove-one --accounting individual --horizon 96 --updates 300 --out homes.dpfuse
# dpfuse evaluate homes.csv homes.dpfuse --time when --sensor home --values power,room --state mean_power --figures figures --record
# dpfuse card homes.dpfuse
# ```

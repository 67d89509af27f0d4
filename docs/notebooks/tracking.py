# %% [markdown]
# # Tracking with few fixed stations
#
# A target moves in the plane. Six stations on a circle measure how far away it is; none of them can locate it alone. The stations
# are few and always the same, so that noise cannot hide behind numbers: this is a hard case for privacy, and this notebook shows how
# hard.

# %%
# %matplotlib inline
import numpy as np

import dpfuse
from dpfuse.evaluation import figures
from dpfuse.evaluation.text import to_text
from dpfuse.systems import Tracking, tracking

# %% [markdown]
# ## The system
#
# The state is the position, and a measurement is a range. All stations share one filter, which must know where a station stands. That
# is public and never changes, so it is an **attribute** of the station: registered once, never sent, and free of charge.

# %%
system = Tracking()
simulated = tracking.simulate(system, num_runs=500, num_steps=60, seed=0)
runs = dpfuse.Trajectories(
    state=simulated.state,
    measurements=simulated.measurements[..., :1],
    attributes={number: place for number, place in enumerate(system.stations)},
)
training, validation, test = runs.split((0.8, 0.1, 0.1), by="run")
print(f"state {runs.state.shape}, measurements {runs.measurements.shape}")
print(f"stations at {np.round(system.stations, 1).tolist()}")

# %% [markdown]
# ## Designs
#
# Runs are independent, so whole runs go to training, validation and test. All designs release two numbers a step.

# %%
settings = dpfuse.Optimisation(num_updates=400)
plan = {
    "classical": ("constant", dpfuse.Guarantee(order=2, budget=1.5, adjacency="remove-one")),
    "individual": (
        "adaptive",
        dpfuse.Guarantee(order=2, budget=1.5, adjacency="remove-one", accounting="individual"),
    ),
    "no noise": ("adaptive", None),
}
designs = {
    name: dpfuse.train(training, validation, guarantee, spending=spending, optimisation=settings)
    for name, (spending, guarantee) in plan.items()
}
reports = {name: dpfuse.evaluate(design, test) for name, design in designs.items()}
print(to_text(reports, {}, "classical"))

# %% [markdown]
# ## One run
#
# Each coordinate has its own estimate and band. The band shows when the estimator does not know.

# %%
figures.plot_estimates(
    {name: designs[name] for name in ("classical", "individual")}, test, state_name=["x", "y"], duration_s=60
)

# %% [markdown]
# ## When it spends
#
# The classical design spends evenly. The individual one spends where it helps: early, to find the target, and then to follow it.

# %%
figures.plot_budget({name: reports[name] for name in ("classical", "individual")})

# %%
figures.plot_error(reports)

# %% [markdown]
# ## What to learn from it
#
# - With six sensors, the price of privacy is the distance between the designs and the line without noise. More stations lower it, as
#   the noise is added once to the sum of all.
# - Attributes tell a shared filter which sensor it is. What is private must not be one: send it as a channel of the reports instead.
# - A band that is as wide as the prior's says that the budget is too small for the question. Ask for less: a coarser grid, fewer
#   releases, or a longer interval.

# %% [markdown]
# # A first design in five minutes
#
# Vehicles on a freeway report their position and speed five times a second. We want everybody to know the density of traffic, and
# nobody to learn where a single vehicle was. This notebook simulates such a road, trains a design for a privacy budget, and shows
# what it gives for it.

# %%
# %matplotlib inline
import dpfuse
from dpfuse.evaluation import figures
from dpfuse.systems import freeway

# %% [markdown]
# ## Data
#
# `freeway.simulate` stands in for your recordings. 30% of the vehicles report. The state is the density of **all** vehicles on
# 400 m, in vehicles per km. Recordings are split along time before anything is learned from them.

# %%
road = freeway.simulate(num_runs=4, duration_s=900, seed=0).sample_sensors(0.3, seed=0)
training, validation, test = road.split()
figures.plot_recording(test, state_name="density [veh/km]")

# %% [markdown]
# ## Guarantee
#
# Everything that is released about one vehicle, over its whole trip, stays within this budget. `remove-one`: whether the vehicle
# took part at all is hidden. `individual`: each vehicle has an account of its own and pays for what it adds.

# %%
guarantee = dpfuse.Guarantee(order=2, budget=0.5, adjacency="remove-one", accounting="individual")

# %% [markdown]
# ## Training
#
# One call finds what each vehicle contributes, how the budget is spent over the 100 releases of 20 seconds, and the estimator that
# reads them. More updates give better designs; the default is 2,000.

# %%
settings = dpfuse.Optimisation(num_updates=400)
design = dpfuse.train(training, validation, guarantee, horizon=100, optimisation=settings)

# %% [markdown]
# ## Result
#
# The error is measured on the last tenth of the recording. `prior_mse` is the error of always saying the mean, so it is what one
# knows without any release.

# %%
report = dpfuse.evaluate(design, test)
print(f"squared error {report.mse:.0f} (veh/km)^2, without releases {report.prior_mse:.0f}")
print(f"most spent by a vehicle {report.budget_spent_max:.4f} of {guarantee.budget}")
print(f"the estimator's 95% band contains the density {report.coverage:.0%} of the time")

# %%
figures.plot_estimates({"individual": design}, test, state_name="density [veh/km]")

# %%
print(report.statement)

# %% [markdown]
# ## Keep it, and use it
#
# A design is one file. It holds a card that says what it guarantees and what it was trained on; `dpfuse card road.dpfuse` prints it.

# %%
design.save("road.dpfuse", report=report)

# %% [markdown]
# `ExactStep` runs the design release by release, in integers and with exact discrete noise, as a live centre does.

# %%
step = dpfuse.ExactStep(dpfuse.load("road.dpfuse"), num_rows=test.num_slots)
carry = step.init()
carry, charged = step.contribute(carry, test.sensors[0, 0], test.measurements[0, 0], test.present[0, 0])
released = step.release(charged)  # the only value that may leave the centre
carry, estimate = step.estimate(carry, released)  # anybody can compute this
print(f"after one release: {estimate.mean[0, 0]:.0f} veh/km; the truth: {test.state[0, 0, 0]:.0f}")

# %% [markdown]
# Next: [your own table](own_table.md), [choosing a budget](choosing_a_budget.md), or [run it live](../live.md).

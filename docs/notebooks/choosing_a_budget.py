# %% [markdown]
# # Choosing a budget
#
# A budget bounds what anybody can learn about the people behind the sensors, and it has a price in accuracy. This notebook shows
# both sides: first what a budget means to a person, then what it costs. Decide by the first, and check that the second will do.

# %%
# %matplotlib inline
import dpfuse
from dpfuse import privacy
from dpfuse.evaluation import figures
from dpfuse.systems import linear_gaussian

# %% [markdown]
# ## What a budget means
#
# The chance to tell is that of the best possible observer, who sees all releases, knows everybody else's data, and finds it as
# likely as not that one person took part. 50% is guessing. `dpfuse account` prints the same on the command line.

# %%
budgets = [0.05, 0.2, 0.8, 3.0]
for budget in budgets:
    epsilon = privacy.epsilons(2.0, budget, 1e-5)["gdp"]
    chance = privacy.chance_to_tell(2.0, budget)
    print(f"budget {budget:4g}: epsilon {epsilon:5.2f} at delta 1e-5, chance to tell {chance:.1%}")

# %% [markdown]
# ## What it costs
#
# Twenty sensors follow a random walk for 50 steps. `train_many` trains designs for all budgets at once, here with two seeds each, so
# that luck can be told from the budget. *Classical* spends evenly. *Individual* spends by past releases and charges each sensor for
# what it adds. The floor adds no noise and guarantees nothing.

# %%
walk = linear_gaussian.LinearGaussian.random_walk()
runs = linear_gaussian.simulate(walk, num_runs=400, num_steps=50, seed=0)
training, validation, test = runs.split((0.7, 0.1, 0.2), by="run")
settings = dpfuse.Optimisation(num_updates=400)


def train(accounting, spending):
    guarantees = [
        dpfuse.Guarantee(order=2, budget=budget, adjacency="remove-one", accounting=accounting) for budget in budgets
    ]
    return dpfuse.train_many(training, validation, guarantees, seeds=[0, 1], spending=spending, optimisation=settings)


designs = {"classical": train("total", "constant"), "individual": train("individual", "adaptive")}
designs["no noise"] = [dpfuse.train(training, validation, None, optimisation=settings)]
reports = {name: [dpfuse.evaluate(design, test) for design in several] for name, several in designs.items()}

# %% [markdown]
# ## Error against budget
#
# Dots are seeds, bars are 95% intervals.

# %%
figures.plot_error_against_budget(reports)

# %% [markdown]
# Results leave as rows, for any table or plot of your own:

# %%
import polars as pl

rows = [{"design": name} | report.to_row() for name, several in reports.items() for report in several]
table = pl.DataFrame(rows).group_by("design", "budget").agg(pl.col("mse").mean(), pl.col("coverage").mean())
table.sort("design", "budget")

# %% [markdown]
# ## Decide
#
# - Where the curve is flat, more budget buys little: take the smaller one.
# - Where it is steep, look for other means first: individual accounts, more sensors, a shorter horizon or a coarser question.
# - A budget is for everything that is ever released about a sensor. Two streams or two months with one budget each are two budgets:
#   see [household meters for a month](household_month.md).
# - Do not choose the budget by looking at errors on private data. Use public or simulated data, as here.
#
# [Choosing a budget](../choosing-a-budget.md) says how to talk about it.

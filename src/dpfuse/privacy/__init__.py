"""Loss of a release, accounts, exact releases with their noise, and what a guarantee means."""

from dpfuse.privacy.budget import GRID, Admitted, IndividualFilter, TotalFilter, as_loss, squared_steps
from dpfuse.privacy.conversion import (
    CONVERSIONS,
    Conversion,
    budget_for,
    chance_to_tell,
    discrete_surcharge,
    epsilons,
    gdp_epsilon,
    mu_of,
    rho_of,
)
from dpfuse.privacy.loss import FEATURE_SETS, FeatureSet, charge_factor, largest_weight, renyi_loss
from dpfuse.privacy.noise import Noise, add_noise, make_noise
from dpfuse.privacy.release import (
    Charged,
    Mechanism,
    Release,
    from_grid,
    to_grid,
    weight_to_grid,
    within_set,
)
from dpfuse.privacy.statement import Statement, in_short, state_guarantee

__all__ = [
    "CONVERSIONS",
    "FEATURE_SETS",
    "GRID",
    "Admitted",
    "Charged",
    "Conversion",
    "FeatureSet",
    "IndividualFilter",
    "Mechanism",
    "Noise",
    "Release",
    "Statement",
    "TotalFilter",
    "add_noise",
    "as_loss",
    "budget_for",
    "chance_to_tell",
    "charge_factor",
    "discrete_surcharge",
    "epsilons",
    "from_grid",
    "gdp_epsilon",
    "in_short",
    "largest_weight",
    "make_noise",
    "mu_of",
    "renyi_loss",
    "rho_of",
    "squared_steps",
    "state_guarantee",
    "to_grid",
    "weight_to_grid",
    "within_set",
]

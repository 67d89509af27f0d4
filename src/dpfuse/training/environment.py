"""The spending problem as Gymnasium environments: a step is a release, the action is what to spend on it.

The recurrent filter f and the estimator E are those of a finished design; the agent takes the place of its g. One
episode is a window of a recording, from the first release to the last. The observation is what g reads (`observe`), and
public. The reward is minus the squared error in standard units, averaged over the coordinates of the state. It depends
on the true state, so an environment is for training on data that is public or simulated.

f is fixed, so its pass over the sensors' histories is made when an episode begins. Unless f is guided, only the sum of
the features matters then, and a step is the public part of Algorithm 1. Environments made together are always in the
same step of their episodes.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from jaxtyping import Array, Float
from numpy.typing import ArrayLike, NDArray

from dpfuse import _check
from dpfuse._arrays import Floats32
from dpfuse.policy.array_tree import AnyArray
from dpfuse.policy.design import Design
from dpfuse.policy.filters import read_features
from dpfuse.policy.policy import Policy
from dpfuse.policy.recordings import check_recording
from dpfuse.policy.rollout import PackedWindows, SensorFeatures, encode_sensors, sum_by_window
from dpfuse.policy.step import (
    LARGEST_DEPARTURE,
    PublicCarry,
    estimate,
    init_public,
    observe,
    release,
    scale_contributions,
    share_of_rest,
    usable_budget,
    weight_for,
)
from dpfuse.policy.structure import Structure
from dpfuse.training.sampler import Sampler
from dpfuse.trajectories import Trajectories

ActionKind = Literal["share", "departure"]


class Episodes(NamedTuple):
    """What does not depend on actions in episodes side by side: sensors, release noise and true states."""

    sensors: SensorFeatures
    noise: Float[Array, "K envs d"]
    state: Float[Array, "K envs n_x"]


class Outcome(NamedTuple):
    """The result of one step.

    Attributes:
        observed: the next observation.
        reward: minus the squared error.
        fusion_weight: of the release.
        budget_left: as a share of the whole.
    """

    observed: Float[AnyArray, "envs inputs"]
    reward: Float[AnyArray, " envs"]
    fusion_weight: Float[AnyArray, " envs"]
    budget_left: Float[AnyArray, " envs"]


@partial(jax.jit, static_argnames="kind")
def advance(
    policy: Policy, public: PublicCarry, episodes: Episodes, action: Float[Array, " envs"], kind: ActionKind = "share"
) -> tuple[PublicCarry, Outcome]:
    """One release of every episode; `action` is as in `SpendingVectorEnv` and within its bounds."""
    now = public.step_index
    share = action if kind == "share" else share_of_rest(policy, public, action)
    weight = weight_for(policy, public, share)
    sensors, recurrent_filter = episodes.sensors, policy.networks.recurrent_filter
    readout = recurrent_filter.make_readout(public.estimator_hidden)
    features = read_features(recurrent_filter, sensors.encoded[now], sensors.present[now], readout, sensors.window)
    _, contributions = scale_contributions(policy, jnp.asarray(sensors.account_share), features, sensors.window, weight)
    released = release(contributions, sensors.window, episodes.noise[now])
    published = None if sensors.public is None else sensors.public[now]
    public, (mean, _) = estimate(policy, public, weight, released, published=published)
    error = (mean - episodes.state[now]) / policy.constants.state_std[None]
    left = public.budget_left / usable_budget(policy)
    return public, Outcome(observe(policy, public), -jnp.mean(error**2, axis=-1), weight, left)


class Game:
    """Episodes of a design on random windows of a recording, stepped together; arguments as in `SpendingVectorEnv`."""

    def __init__(self, design: Design, recording: Trajectories, num_envs: int, kind: ActionKind) -> None:
        _check.is_one_of("action", kind, ("share", "departure"))
        horizon = _check_design(design, recording)
        self._policy, self._horizon, self._kind = design.policy, horizon, kind
        self._sampler = Sampler(recording, horizon, _check.is_count("num_envs", num_envs))
        self._steps_left = 0
        self._num_envs = num_envs
        self._low, self._high = (0.0, 1.0) if kind == "share" else (-LARGEST_DEPARTURE, LARGEST_DEPARTURE)
        self.action_space = gymnasium.spaces.Box(self._low, self._high, (1,), np.float32)
        self.observation_space = _observation_space(design.structure)

    @property
    def is_over(self) -> bool:
        return self._steps_left == 0

    def begin(self, rng: np.random.Generator) -> Floats32:
        """Draw new windows and noise; returns the observations before the first release."""
        windows = jax.tree.map(lambda leaf: leaf[0], self._sampler.draw(rng))
        shape = (self._horizon, self._num_envs, self._policy.structure.dimension)
        noise = rng.standard_normal(shape, np.float32)
        self._episodes = Episodes(_encode(self._policy, windows), jnp.asarray(noise), jnp.asarray(windows.state))
        self._public, observed = _start(self._policy, self._num_envs)
        self._steps_left = self._horizon
        return np.array(observed)

    def step(self, actions: ArrayLike) -> Outcome:
        """One release of every episode; the caller may change the arrays, which are of NumPy."""
        if self.is_over:
            raise RuntimeError(
                "step must come within an episode, and none has begun or the last one is over; call reset()"
            )
        values = np.asarray(actions, np.float32)
        if values.size != self._num_envs:
            raise ValueError(f"actions must be {self._num_envs}, one for each environment, got {values.size}")
        if not np.isfinite(values).all():
            raise ValueError("actions must be finite, got NaN or infinity; check whether your agent has diverged")
        clipped = np.clip(values.reshape(self._num_envs), self._low, self._high)
        self._public, outcome = advance(self._policy, self._public, self._episodes, clipped, self._kind)
        self._steps_left -= 1
        return Outcome(*map(np.array, outcome))


class SpendingVectorEnv(VectorEnv[Floats32, Floats32, NDArray[Any]]):
    """Many episodes side by side, in one compiled step.

    Made by `gymnasium.make_vec("dpfuse/Spending-v0", num_envs=..., design=..., recording=...)`. All episodes have as
    many steps as the design has releases, so all of them end at once.

    Args:
        num_envs: episodes side by side.
        design: with total accounting and spending that is not constant; its f and E are used, its g is not.
        recording: where windows are drawn from; its runs are at least as long as the design's horizon.
        action: what an action means. `share`: the share of the budget left, in [0, 1]. `departure`: the departure from
            even spending in log-odds of that share, 0 for the share 1 / (steps left); the last release then takes all
            that is left. Finite values outside the bounds are clipped, others are refused.
        autoreset_mode: Gymnasium's `AutoresetMode`. `NEXT_STEP`: the step after the end of an episode begins a new one.
            `SAME_STEP`: the last step of an episode does.
    """

    def __init__(
        self,
        num_envs: int,
        design: Design,
        recording: Trajectories,
        action: ActionKind = "share",
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ) -> None:
        self._game = Game(design, recording, num_envs, action)
        self._mode = AutoresetMode(autoreset_mode)
        if self._mode == AutoresetMode.DISABLED:
            raise ValueError("autoreset_mode must be NextStep or SameStep: all episodes end at once")
        self.metadata = {"autoreset_mode": self._mode, "render_modes": []}
        self.num_envs = num_envs
        self.single_action_space, self.single_observation_space = self._game.action_space, self._game.observation_space
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats32, dict[str, Any]]:
        super().reset(seed=seed)
        return self._game.begin(self.np_random), {}

    def step(self, actions: Floats32) -> tuple[Floats32, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        none = np.zeros(self.num_envs, bool)
        if self._game.is_over and self._mode == AutoresetMode.NEXT_STEP and self._np_random is not None:
            return self._game.begin(self.np_random), np.zeros(self.num_envs), none, none.copy(), {}
        outcome = self._game.step(actions)
        observed, info = np.asarray(outcome.observed), self._masked(_info(outcome))
        is_over = self._game.is_over
        if is_over and self._mode == AutoresetMode.SAME_STEP:
            final = np.empty(self.num_envs, object)
            final[:] = list(observed)
            info = self._masked({"final_obs": final, "final_info": info})
            observed = self._game.begin(self.np_random)
        return observed, np.asarray(outcome.reward, np.float64), none | is_over, none, info

    def _masked(self, info: dict[str, Any]) -> dict[str, Any]:
        """The info with Gymnasium's masks, which mark that every environment has an entry."""
        return info | {f"_{name}": np.ones(self.num_envs, bool) for name in info}


class SpendingEnv(gymnasium.Env[NDArray[Any], NDArray[Any]]):
    """One episode at a time; arguments as for `SpendingVectorEnv`."""

    def __init__(self, design: Design, recording: Trajectories, action: ActionKind = "share") -> None:
        self._game = Game(design, recording, 1, action)
        self.action_space, self.observation_space = self._game.action_space, self._game.observation_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats32, dict[str, Any]]:
        super().reset(seed=seed)
        return self._game.begin(self.np_random)[0], {}

    def step(self, action: Floats32) -> tuple[Floats32, float, bool, bool, dict[str, Any]]:
        outcome = self._game.step(action)
        info = {name: float(value[0]) for name, value in _info(outcome).items()}
        return np.asarray(outcome.observed)[0], float(outcome.reward[0]), self._game.is_over, False, info


@jax.jit
def _encode(policy: Policy, windows: PackedWindows) -> SensorFeatures:
    sensors = encode_sensors(policy, windows)
    return sum_by_window(sensors, windows.state.shape[1]) if policy.is_summed else sensors


@partial(jax.jit, static_argnums=1)
def _start(policy: Policy, num_envs: int) -> tuple[PublicCarry, Float[Array, "envs inputs"]]:
    public = init_public(policy, num_envs)
    return public, observe(policy, public)


def _info(outcome: Outcome) -> dict[str, Any]:
    return {"fusion_weight": outcome.fusion_weight, "budget_left": outcome.budget_left}


def _check_design(design: Design, recording: Trajectories) -> int:
    """The horizon of the design, if it and the recording make a spending problem."""
    structure = design.structure
    if not structure.is_private or structure.accounting != "total" or structure.spending == "constant":
        raise ValueError(
            "design must have a guarantee with total accounting and spending that is not constant: with individual "
            "accounts an action has no budget to be a share of, and E of a constant design knows even spending alone"
        )
    assert structure.horizon is not None  # total accounting has an end
    check_recording(structure, recording, "recording")
    if recording.num_steps < structure.horizon:
        raise ValueError(
            f"recording must have runs of at least the design's {structure.horizon} steps, got {recording.num_steps}"
        )
    return structure.horizon


def _observation_space(structure: Structure) -> gymnasium.spaces.Box:
    """Bounds of what `observe` gives: release, reliability, estimate and its deviation, skipped, inputs, clock."""
    any_number, positive, share = (-np.inf, np.inf), (0.0, np.inf), (0.0, 1.0)
    each = [any_number] * structure.dimension + [share]
    each += [any_number] * structure.num_states + [positive] * structure.num_states + [share]
    each += [(-1.0, 1.0)] * structure.num_public + [share] * structure.num_public + [share] * 2
    low, high = np.array(each, np.float32).T
    return gymnasium.spaces.Box(low, high, dtype=np.float32)

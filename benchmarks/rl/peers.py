"""Learn with Stable-Baselines3 on the vectorised environment."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

import dpfuse.gym
from benchmarks.rl.clock import Curve
from benchmarks.rl.problem import STEPS, Problem, read_problem, units, validation_episodes
from dpfuse.policy.step import init_public, observe
from dpfuse.training.environment import advance

# All act on the departure from even spending, as ours does: a Gaussian over the raw share would spend half of the
# budget at the first step. An episode is one rollout; observations and rewards are normalised.
SETTINGS: dict[str, dict[str, Any]] = {
    # The library's defaults, but for larger minibatches: 64 of 6,400 samples would take ten times as long.
    "PPO, defaults": {"learner": PPO, "num_envs": 64, "options": {"batch_size": 640}},
    # No discount, because episodes end; larger steps; less exploration.
    "PPO, tuned": {
        "learner": PPO,
        "num_envs": 128,
        "options": {
            "batch_size": 1600,
            "learning_rate": 1e-3,
            "gamma": 1.0,
            "gae_lambda": 0.95,
            "policy_kwargs": {"log_std_init": -0.7},
        },
    },
    # With a recurrent policy, as ours.
    "RecurrentPPO": {
        "learner": RecurrentPPO,
        "num_envs": 128,
        "options": {
            "batch_size": 1600,
            "n_epochs": 4,
            "learning_rate": 1e-3,
            "gamma": 1.0,
            "gae_lambda": 0.95,
            "policy_kwargs": {
                "lstm_hidden_size": 16,
                "net_arch": [],
                "enable_critic_lstm": True,
                "log_std_init": -0.7,
            },
        },
    },
}


def main() -> None:
    """Learn with one of the settings until the time is up, and write the curve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--curve", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--setting", choices=SETTINGS, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    # These networks are too small for a second thread to help.
    torch.set_num_threads(1)
    problem, setting = read_problem(options.folder), SETTINGS[options.setting]
    curve = Curve(options.curve, options.seconds, make_judge(problem))
    envs = VecNormalize(Spending(problem, setting["num_envs"]), gamma=setting["options"].get("gamma", 0.99))
    policy = "MlpPolicy" if setting["learner"] is PPO else "MlpLstmPolicy"
    model = setting["learner"](policy, envs, n_steps=STEPS, seed=options.seed, device="cpu", **setting["options"])
    model.learn(10**12, callback=Look(curve))


class Spending(VecEnv):
    """Gymnasium's vector environment in the form that Stable-Baselines3 takes."""

    def __init__(self, problem: Problem, num_envs: int) -> None:
        self._envs = gymnasium.make_vec(
            dpfuse.gym.SPENDING,
            num_envs=num_envs,
            design=problem.design,
            recording=problem.training,
            action="departure",
            autoreset_mode="SameStep",
        )
        super().__init__(num_envs, self._envs.single_observation_space, self._envs.single_action_space)
        self._infos: list[dict[str, Any]] = [{} for _ in range(num_envs)]

    def reset(self) -> np.ndarray:
        return self._envs.reset(seed=self._seeds[0])[0]

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        observed, reward, terminated, _, _ = self._envs.step(self._actions)
        return observed, reward, terminated, self._infos

    def close(self) -> None:
        self._envs.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError("the environments have one common state: learners set nothing in a single one")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError("the environments have one common state: learners call nothing in a single one")

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


class Look(BaseCallback):
    """Measures the error after every rollout, until the time is up."""

    def __init__(self, curve: Curve) -> None:
        super().__init__()
        self._curve = curve

    def _on_rollout_start(self) -> None:
        self._curve.look(self.model, self.num_timesteps)

    def _on_step(self) -> bool:
        return not self._curve.is_over


def make_judge(problem: Problem):
    """The mean squared error of a model's deterministic actions on the validation episodes."""
    policy, episodes, scale = problem.design.policy, validation_episodes(problem), units(problem)
    count = episodes.state.shape[1]
    start = jax.jit(lambda policy: (public := init_public(policy, count), observe(policy, public)))

    def error(model: Any) -> float:
        public, observed = start(policy)
        memory, is_first, total = None, np.ones(count, bool), 0.0
        for _ in range(STEPS):
            normalised = model.get_vec_normalize_env().normalize_obs(np.asarray(observed))
            action, memory = model.predict(normalised, memory, is_first, deterministic=True)
            public, outcome = advance(policy, public, episodes, action[:, 0], "departure")
            observed, is_first = outcome.observed, np.zeros(count, bool)
            total -= float(np.mean(outcome.reward))
        return scale * total / STEPS

    return error


if __name__ == "__main__":
    main()

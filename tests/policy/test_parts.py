"""Parts of a user's own: the checks refuse what breaks a rule, and a design with own parts trains, saves and loads."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpfuse
from dpfuse.errors import FileRefused
from dpfuse.policy import Estimator, RecurrentFilter, SpendingRule, into_set
from dpfuse.policy.estimators import ESTIMATORS
from dpfuse.policy.filters import FILTERS
from dpfuse.policy.spending import SPENDING_RULES
from support.designs import BRIEF, SMALL, make_design, make_guarantee
from tools import transcripts

ROOT = Path(__file__).parents[2]


class Smoother(RecurrentFilter):
    """A running average of the sensor's own measurements. `fault` makes it break a rule."""

    mix: jax.Array
    features: str = eqx.field(static=True)
    hidden_size: int = eqx.field(static=True)
    fault = ""

    def __init__(self, structure, *, key):
        self.mix = 3 * jax.random.normal(key, (structure.num_channels, structure.dimension))
        self.features, self.hidden_size = structure.features, structure.num_channels

    def step(self, hidden, inputs, present, arrived):
        before = hidden if self.fault == "inherits memory" else jnp.where(arrived[:, None], 0.0, hidden)
        moved = before + 0.5 * (inputs - before)
        after = moved if self.fault == "forgets" else jnp.where(present[:, None], moved, before)
        raw = after @ self.mix
        if self.fault == "mean over rows":
            raw = raw - raw.mean(0, keepdims=True)
        if self.fault == "counts":
            raw = raw + 1e-6 * present.sum()
        if self.fault == "row number":
            raw = raw + 1e-6 * jnp.arange(len(raw))[:, None]
        features = raw if self.fault == "unbounded" else into_set(self.features, raw)
        return after, features if self.fault == "absent" else jnp.where(present[:, None], features, 0.0)

    def over_time(self, inputs, present, arrived):
        encoded = super().over_time(inputs, present, arrived)
        return encoded[::-1] if self.fault == "over time" else encoded


def with_fault(kind, name):
    """The class with a fault."""
    return type(kind)(
        f"{kind.__name__}{name.title().replace(' ', '')}", (kind,), {"fault": name, "__init__": kind.__init__}
    )


class Growing(RecurrentFilter):
    """Its memory doubles at every step, until it overflows."""

    hidden_size: int = eqx.field(static=True)

    def __init__(self, structure, *, key):
        self.hidden_size = 2

    def step(self, hidden, inputs, present, arrived):
        before = jnp.where(arrived[:, None], 0.0, hidden)
        after = jnp.where(present[:, None], 1e4 * before + inputs, before)
        return after, jnp.where(present[:, None], into_set("ball", after - after), 0.0)


class Follower(RecurrentFilter):
    """A guided filter: the sign of a measurement turns with E's memory."""

    features: str = eqx.field(static=True)
    hidden_size: int = eqx.field(static=True)
    is_guided = True

    def __init__(self, structure, *, key):
        self.features, self.hidden_size = structure.features, 0

    def step(self, hidden, inputs, present, arrived):
        return hidden, inputs

    def make_readout(self, known):
        return {"sign": jnp.tanh(known[:, :1])}

    def read(self, encoded, present, readout):
        return jnp.where(present[:, None], into_set(self.features, readout["sign"] * encoded), 0.0)


class Ramp(SpendingRule):
    """Departs along a line, from the share of the steps that are over. `fault` makes it break a rule."""

    slope: jax.Array
    hidden_size: int = eqx.field(static=True)
    fault = ""

    def __init__(self, structure, *, key):
        self.slope, self.hidden_size = jnp.ones(()), 1

    def step(self, hidden, observed, step_index):
        departure = self.slope * (1 - 2 * observed[:, -2])
        if self.fault == "mean over streams":
            departure = departure - departure.mean()
        if self.fault == "nan":
            departure = departure + 0 * jnp.exp(observed[:, 0])
        return hidden + 1, departure + hidden[:, 0]


class Leaky(Estimator):
    """A leaky sum of the releases. `fault` makes it break a rule."""

    show: jax.Array
    hidden_size: int = eqx.field(static=True)
    fault = ""

    def __init__(self, structure, *, key):
        self.show = jax.random.normal(key, (structure.num_estimator_inputs, structure.num_states))
        self.hidden_size = structure.estimator_size + (self.fault == "size")

    def step(self, hidden, inputs):
        hidden = 0.9 * hidden + 0.1 * jnp.tanh(inputs[:, :1])
        mean = hidden[:, :1] + jnp.tanh(inputs @ self.show)
        mean = jnp.exp(inputs[:, :1]) if self.fault == "overflow" else mean
        std = jnp.zeros_like(mean) if self.fault == "no spread" else jnp.ones_like(mean)
        return hidden, mean - mean.mean(0) if self.fault == "mean over streams" else mean, std


class TestChecks:
    @pytest.mark.parametrize("name", FILTERS)
    def test_the_filters_of_the_package_keep_their_contract(self, name):
        dpfuse.check_filter(FILTERS[name], features="box")

    @pytest.mark.slow
    @pytest.mark.parametrize("features", ["ball", "orthant"])
    def test_a_guided_filter_keeps_its_contract_in_every_set(self, features):
        dpfuse.check_filter(FILTERS["guided"], features=features, dimension=3)

    @pytest.mark.parametrize("kind", [Smoother, Follower])
    def test_filters_of_a_user_that_keep_the_contract_pass(self, kind):
        dpfuse.check_filter(kind)

    @pytest.mark.parametrize(
        ("fault", "message"),
        [
            ("mean over rows", r"breaks the rule of independence: a row's results depend on other rows"),
            ("counts", r"breaks the rule of independence: a row's results depend on other rows"),
            ("row number", r"breaks the rule of independence: a row's results depend on where the row stands"),
            ("inherits memory", r"breaks the rule of independence: a row that arrives reads the memory of another"),
            ("unbounded", r"breaks the rule of bounds: features leave their set"),
            ("absent", r"breaks the rule of bounds: a row that is not present has features"),
            ("forgets", "breaks its contract: a row that is not present does not keep its memory"),
            ("over time", "breaks its contract: over_time differs from step"),
        ],
    )
    def test_a_filter_that_breaks_a_rule_is_refused(self, fault, message):
        with pytest.raises(ValueError, match=message):
            dpfuse.check_filter(with_fault(Smoother, fault))

    def test_a_filter_whose_memory_overflows_is_refused(self):
        with pytest.raises(ValueError, match=r"Growing breaks the rule of bounds: features leave their set"):
            dpfuse.check_filter(Growing)

    @pytest.mark.parametrize("kind", [*SPENDING_RULES.values(), Ramp])
    def test_spending_rules_pass(self, kind):
        dpfuse.check_spending(kind)

    @pytest.mark.parametrize(
        ("fault", "message"),
        [
            ("mean over streams", r"breaks the rule of public spending: a row's results depend on other rows"),
            ("nan", "breaks its contract: the departure is NaN"),
        ],
    )
    def test_a_spending_rule_that_breaks_its_contract_is_refused(self, fault, message):
        with pytest.raises(ValueError, match=message):
            dpfuse.check_spending(with_fault(Ramp, fault))

    @pytest.mark.parametrize("kind", [*ESTIMATORS.values(), Leaky])
    def test_estimators_pass(self, kind):
        dpfuse.check_estimator(kind)

    @pytest.mark.parametrize(
        ("fault", "message"),
        [
            ("mean over streams", "breaks its contract: a row's results depend on other rows"),
            ("overflow", "mean or standard deviation is not finite"),
            ("no spread", "the latter not above 0"),
            ("size", "estimator must remember estimator_size numbers, 40, got hidden_size 41"),
        ],
    )
    def test_an_estimator_that_breaks_its_contract_is_refused(self, fault, message):
        with pytest.raises(ValueError, match=message):
            dpfuse.check_estimator(with_fault(Leaky, fault))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The Python of docs/extend.md as a module, its design trained by one update, saved and loaded."""
    text = re.sub(r"num_updates=\d+", "num_updates=1", (ROOT / "docs/extend.md").read_text())
    module = ModuleType("extend_page")
    with contextlib.chdir(tmp_path_factory.mktemp("page")):
        exec(compile(transcripts.program_in(text), "extend.md", "exec", dont_inherit=True), module.__dict__)
    return module


@pytest.mark.slow
class TestDesigns:
    def test_the_parts_of_the_page_are_trained_and_keep_the_budget(self, page, walks):
        structure = page.design.structure
        names = structure.recurrent_filter, structure.spending, structure.estimator
        assert names == ("extend_page:Smoother", "extend_page:Ramp", "extend_page:Leaky")
        assert isinstance(page.design.policy.networks.recurrent_filter, page.Smoother)
        assert float(page.design.policy.networks.spending.slope) != 0.0
        assert dpfuse.evaluate(page.design, walks[2], num_draws=1).within_budget

    def test_a_file_is_read_by_naming_the_classes_and_refused_if_one_is_missing(self, page, tmp_path):
        page.design.save(tmp_path / "own.dpfuse")
        again = dpfuse.load(tmp_path / "own.dpfuse", parts=[page.Leaky, page.Smoother, page.Ramp])
        assert again.fingerprint == page.design.fingerprint
        estimator = r"its estimator is extend_page:Leaky, which is not of this package; pass its class, parts=\[Leaky\]"
        recurrent_filter = r"its recurrent_filter is extend_page:Smoother, .* parts=\[Smoother\]"
        for parts, message in [
            ([page.Smoother, page.Ramp], estimator),
            ([page.Smoother, page.Ramp, Leaky], estimator),  # of the same name in another module
            ([page.Ramp, page.Leaky], recurrent_filter),
        ]:
            with pytest.raises(FileRefused, match=f"own.dpfuse cannot be read: {message}"):
                dpfuse.load(tmp_path / "own.dpfuse", parts=parts)

    def test_no_code_is_imported_by_a_name_in_a_file(self, tmp_path):
        """The class can be imported under this name, and is still not looked up."""
        design = make_design(recurrent_filter=Smoother)
        assert design.structure.recurrent_filter == f"{Smoother.__module__}:Smoother"
        design.save(tmp_path / "own.dpfuse")
        with pytest.raises(FileRefused, match="pass its class"):
            dpfuse.load(tmp_path / "own.dpfuse")

    def test_the_remote_estimator_needs_the_class_of_the_estimator_alone(self, page, tmp_path):
        page.design.export_estimator(tmp_path / "own.estimator")
        with pytest.raises(FileRefused, match="own.estimator cannot be read: its estimator is .*Leaky"):
            dpfuse.RemoteEstimator(tmp_path / "own.estimator")
        assert dpfuse.RemoteEstimator(tmp_path / "own.estimator", parts=[page.Leaky]).last_step("main") == 0

    def test_the_estimator_file_does_not_name_the_filter_or_the_spending_rule(self, tmp_path):
        """Designs with the same E have the same file, whichever f and g they have."""
        parts = [{"spending": Ramp, "recurrent_filter": Smoother}, {"spending": "schedule"}, {"spending": "adaptive"}]
        for number, own in enumerate(parts):
            make_design(**own).export_estimator(tmp_path / str(number))
        one, *others = ((tmp_path / str(number)).read_bytes() for number in range(len(parts)))
        assert all(one == other for other in others)

    def test_a_guided_filter_of_a_user_follows_the_releases(self):
        design = make_design(recurrent_filter=Follower, spread=0.5)
        step = dpfuse.ExactStep(design, 2)
        carry = step.init()
        assert carry.query.readout["sign"].tolist() == [[0.0]]
        carry, charged = step.contribute(carry, [1, 2], np.ones((2, 2)))
        carry, _ = step.estimate(carry, step.release(charged))
        assert carry.query.readout["sign"].tolist() != [[0.0]]

    @pytest.mark.slow
    def test_algorithm_2_trains_a_spending_rule_of_a_user(self, walks):
        design = dpfuse.train(
            *walks[:2],
            make_guarantee(),
            spending=Ramp,
            method="ppo",
            architecture=SMALL,
            optimisation=replace(BRIEF, num_updates=2),
            ppo=dpfuse.PPO(num_rounds=1, num_iterations=1, num_episodes=32, num_epochs=1),
        )
        assert float(design.policy.networks.spending.slope) != 1.0

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                {"spending": "greedy"},
                "spending must be one of constant, schedule, adaptive, agent or a class of your own",
            ),
            ({"recurrent_filter": "lstm"}, "recurrent_filter must be one of gru, guided, affine or a class"),
            (
                {"spending": Smoother},
                "spending must be a subclass of dpfuse.policy.spending:SpendingRule, got .*",
            ),
            ({"recurrent_filter": dict}, "recurrent_filter must be a subclass of dpfuse.*:RecurrentFilter"),
        ],
    )
    def test_what_is_no_part_is_refused(self, options, message):
        with pytest.raises((TypeError, ValueError), match=message):
            make_design(**options)

    def test_a_field_that_is_no_array_must_be_static(self):
        class Loose(Smoother):
            name: str

            def __init__(self, structure, *, key):
                Smoother.__init__(self, structure, key=key)
                self.name = "loose"

        with pytest.raises(TypeError, match="arrays or static fields only"):
            make_design(recurrent_filter=Loose)

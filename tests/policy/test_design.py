"""Design files: what was saved comes back bit for bit, and anything else is refused in words."""

from __future__ import annotations

import io
import json
import pickle
import re
import zipfile
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpfuse
from dpfuse._labels import Labels
from dpfuse.errors import FileRefused
from dpfuse.policy import rollout
from dpfuse.policy.card import card_text, describe_recording
from dpfuse.policy.rollout import cut
from dpfuse.privacy.statement import NO_GUARANTEE
from dpfuse.trajectories import Trajectories
from support.designs import CASES, busy_data, make_design, make_guarantee

KINDS = [
    *({"accounting": a, "adjacency": b, "features": c} for a, b, c in CASES),
    {"spending": "constant"},
    {"spending": "schedule"},
    {"accounting": "individual", "horizon": None},
    {"features": "unbounded", "spending": "constant"},
    {"features": "box", "recurrent_filter": "affine"},
    {"num_states": 3, "num_channels": 1, "dimension": 4},
]


def contents(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rewrite(path, changes):
    """The file with entries exchanged, added, or left out where None."""
    entries = contents(path) | changes
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            if content is not None:
                archive.writestr(name, content)


def as_npy(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


@pytest.fixture
def saved(tmp_path, designs):
    path = tmp_path / "a.dpfuse"
    designs["total", "remove-one", "ball"].save(path)
    return path


class TestRoundTrip:
    @pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
    def test_every_kind_of_design_comes_back(self, tmp_path, kind):
        design = replace(make_design(**kind, spread=0.3), training={"seed": 3, "note": "für später"})
        design.save(tmp_path / "deep" / "a.dpfuse")
        again = dpfuse.load(tmp_path / "deep" / "a.dpfuse")
        assert (again.guarantee, again.structure) == (design.guarantee, design.structure)
        assert (again.interval_s, again.training) == (design.interval_s, design.training)
        assert again.fingerprint == design.fingerprint
        before, after = jax.tree.leaves(design.policy), jax.tree.leaves(again.policy)
        assert all(one.dtype == two.dtype and np.array_equal(one, two) for one, two in zip(before, after, strict=True))

    def test_a_loaded_design_computes_the_same_bits(self, saved, designs):
        design = designs["total", "remove-one", "ball"]
        data = busy_data()
        windows = cut(data, np.arange(3), np.zeros(3, int), 6)
        noise = np.random.default_rng(0).normal(size=(6, 3, 2)).astype(np.float32)
        run = eqx.filter_jit(rollout)
        before, after = (run(d.policy, windows, noise) for d in (design, dpfuse.load(saved)))
        assert all(np.array_equal(one, two) for one, two in zip(before, after, strict=True))

    def test_equal_designs_are_saved_as_equal_bytes(self, tmp_path):
        for name in ("one", "two"):
            make_design(spread=0.3).save(tmp_path / name)
        assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()

    @pytest.mark.parametrize(
        "numbers", [{"budget": np.float64(0.5)}, {"budget": np.float32(0.5)}, {"budget": 1}, {"order": np.int64(3)}]
    )
    def test_budgets_and_intervals_may_be_numbers_of_any_type(self, tmp_path, numbers):
        """Budgets often come from np.linspace, and intervals from np.diff."""
        design = replace(make_design(**numbers), interval_s=np.float64(0.2))
        design.save(tmp_path / "a.dpfuse")
        assert dpfuse.load(tmp_path / "a.dpfuse").guarantee == design.guarantee

    def test_saving_over_a_file_replaces_it_in_one_move(self, saved):
        make_design("individual").save(saved)
        assert dpfuse.load(saved).guarantee.accounting == "individual"
        assert [path.name for path in saved.parent.iterdir()] == ["a.dpfuse"]


class TestFingerprint:
    def test_it_changes_with_everything_that_decides_a_release(self):
        design = make_design()
        policy = design.policy
        others = [
            make_design(seed=1),
            make_design(features="orthant"),
            make_design(horizon=7),
            make_design(budget=1.4),
            make_design(adjacency="replace-one"),
            replace(design, interval_s=0.25),
            replace(design, policy=eqx.tree_at(lambda p: p.constants.measurement_high, policy, jnp.array([1.0, 1.1]))),
        ]
        assert len({design.fingerprint, *(other.fingerprint for other in others)}) == 1 + len(others)

    def test_it_does_not_change_with_the_record_of_training(self):
        design = make_design()
        assert replace(design, training={"seed": 4}).fingerprint == design.fingerprint


class TestRefusals:
    def test_the_file_holds_numbers_and_text_only(self, saved):
        for name, content in contents(saved).items():
            if name == "metadata.json":
                assert json.loads(content)["kind"] == "design"
            else:
                assert np.load(io.BytesIO(content), allow_pickle=False).dtype == np.float32

    def test_a_missing_file_is_an_error_with_its_path(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="no design file at .*nowhere.dpfuse"):
            dpfuse.load(tmp_path / "nowhere.dpfuse")

    @pytest.mark.parametrize(
        "content", [b"", b"not a zip", pickle.dumps({"kind": "design"}), b"PK\x03\x04" + b"\0" * 99]
    )
    def test_a_file_that_is_no_archive_is_refused(self, tmp_path, content):
        (tmp_path / "a.dpfuse").write_bytes(content)
        with pytest.raises(FileRefused, match="a.dpfuse is not a dpfuse design file"):
            dpfuse.load(tmp_path / "a.dpfuse")

    def test_a_recording_is_no_design_and_a_design_no_recording(self, tmp_path, saved):
        busy_data().save(tmp_path / "road")
        with pytest.raises(FileRefused, match="road must hold a design, its metadata says otherwise"):
            dpfuse.load(tmp_path / "road")
        with pytest.raises(FileRefused, match="must hold a trajectories"):
            dpfuse.Trajectories.load(saved)

    @pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
    def test_a_file_that_was_cut_short_is_refused(self, saved, share):
        whole = saved.read_bytes()
        saved.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(FileRefused, match="is not a dpfuse design file"):
            dpfuse.load(saved)

    @settings(max_examples=150)
    @given(position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
    def test_one_bit_flipped_is_refused_or_changes_nothing(self, tmp_path_factory, position, bit):
        design, path = FLIPPED, tmp_path_factory.getbasetemp() / "flipped.dpfuse"
        design.save(path)
        damaged = bytearray(path.read_bytes())
        damaged[int(position * len(damaged))] ^= 1 << bit
        path.write_bytes(damaged)
        try:
            assert dpfuse.load(path).fingerprint == design.fingerprint
        except FileRefused as error:
            assert str(path) in str(error)

    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [
            ("version", 1, "has design version 1, this is 4; train it again"),
            ("version", None, "has design version None"),
            ("kind", "estimator", "must hold a design"),
            (
                "guarantee",
                {"order": 2.0, "budget": 99.0, "adjacency": "remove-one"},
                "must have its squared radius 99.0",
            ),
            ("guarantee", {"order": 0.5, "budget": 1.5, "adjacency": "remove-one"}, "order must be > 1"),
            ("guarantee", {"order": 2.0}, "is not a design that this version can read"),
            ("guarantee", None, "must have a guarantee if its features are bounded"),
            ("guarantee", "much", "is not a design that this version can read"),
            ("interval_s", 0.1, "was changed after it was written"),
            ("interval_s", "soon", "is not a design that this version can read"),
            ("fingerprint", "0" * 64, "was changed after it was written; its fingerprint does not match"),
            ("structure", {"features": "ball"}, "is not a design that this version can read"),
            ("structure", None, "is not a design that this version can read"),
        ],
    )
    def test_edited_metadata_is_refused(self, saved, field, value, message):
        metadata = json.loads(contents(saved)["metadata.json"]) | {field: value}
        rewrite(saved, {"metadata.json": json.dumps(metadata)})
        with pytest.raises(FileRefused, match=message):
            dpfuse.load(saved)

    @pytest.mark.parametrize("metadata", [b"", b"{", b"[]", b"null", b"\xff\xfe"])
    def test_metadata_that_is_no_json_object_is_refused(self, saved, metadata):
        rewrite(saved, {"metadata.json": metadata})
        with pytest.raises(FileRefused, match="a.dpfuse"):
            dpfuse.load(saved)

    @pytest.mark.parametrize("change", ["wider", "missing", "extra", "float64", "other values", "pickled", "not npy"])
    def test_changed_arrays_are_refused(self, saved, change):
        name = "networks.estimator.gru.bias.npy"
        array = np.load(io.BytesIO(contents(saved)[name]))
        changes = {
            "wider": {name: as_npy(np.append(array, array[:1]))},
            "missing": {name: None},
            "extra": {"more.npy": as_npy(array)},
            "float64": {name: as_npy(array.astype(np.float64))},
            "other values": {name: as_npy(array + 1)},
            "pickled": {name: as_npy(np.array([Trap()], object), allow_pickle=True)},
            "not npy": {name: b"1, 2, 3"},
        }
        rewrite(saved, changes[change])
        with pytest.raises(FileRefused, match="a.dpfuse"):
            dpfuse.load(saved)

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    @pytest.mark.parametrize("name", ["networks.estimator.gru.bias", "constants.state_std", "constants.squared_radius"])
    def test_arrays_that_are_not_finite_are_refused(self, saved, name, value):
        array = np.load(io.BytesIO(contents(saved)[f"{name}.npy"]))
        rewrite(saved, {f"{name}.npy": as_npy(np.full_like(array, value))})
        with pytest.raises(FileRefused, match="its arrays must be finite"):
            dpfuse.load(saved)


class TestConsistency:
    """A design is what its guarantee says, or it is none."""

    @pytest.mark.parametrize("other", [{"budget": 1.4}, {"order": 3.0}])
    def test_the_budget_must_be_that_of_the_guarantee(self, other):
        with pytest.raises(ValueError, match="must have its squared radius"):
            replace(make_design(), guarantee=make_guarantee(**other))

    @pytest.mark.parametrize("other", [{"adjacency": "replace-one"}, {"accounting": "individual"}])
    def test_the_charge_must_be_that_of_the_guarantee(self, other):
        with pytest.raises(ValueError, match="must have its accounting and charge factor"):
            replace(make_design(), guarantee=make_guarantee(**other))

    def test_bounded_features_and_a_guarantee_go_together(self):
        with pytest.raises(ValueError, match="must have a guarantee if its features are bounded, and only then"):
            replace(make_design(), guarantee=None)
        with pytest.raises(ValueError, match="must have a guarantee if its features are bounded, and only then"):
            replace(make_design(features="unbounded", spending="constant"), guarantee=make_guarantee())


class Trap:
    """Unpickling it would fail the test."""

    def __reduce__(self):
        return pytest.fail, ("a design file ran code",)


FLIPPED = make_design(spread=0.1)


class TestCard:
    @pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
    def test_the_file_holds_a_card_as_json_and_as_text(self, tmp_path, kind):
        design = make_design(**kind)
        design.save(tmp_path / "a.dpfuse")
        card = json.loads(contents(tmp_path / "a.dpfuse")["metadata.json"])["card"]
        text = "\n".join(card.pop("text"))
        assert card == json.loads(json.dumps(dpfuse.load(tmp_path / "a.dpfuse").card))
        for title in ("Guarantee", "Mechanism", "Training data", "Settings", "Errors", "Calibration", "Limits"):
            assert f"## {title}\n" in text
        assert all(words in text for words in card["privacy"]["in_words"] + card["limits"])

    def test_the_guarantee_is_that_of_the_design_whatever_the_file_says(self, saved):
        """A card that was edited in the file is not what `dpfuse card` prints."""
        metadata = json.loads(contents(saved)["metadata.json"])
        metadata["card"]["privacy"]["parameters"]["budget"] = 0.001
        rewrite(saved, {"metadata.json": json.dumps(metadata)})
        assert dpfuse.load(saved).card["privacy"]["parameters"]["budget"] == 1.5

    def test_a_design_without_a_guarantee_says_so(self):
        card = make_design(features="unbounded", spending="constant").card
        assert card["privacy"] == {"in_words": [NO_GUARANTEE]}

    @pytest.mark.parametrize("accounting", ["total", "individual"])
    @pytest.mark.parametrize("period", [None, "day"])
    def test_unit_neighbours_and_accounting_are_fields_that_say_what_the_words_say(self, accounting, period):
        end = {} if period is None else {"horizon": None}
        design = make_design(accounting, adjacency="replace-one", features="orthant", period=period, **end)
        privacy, limits = design.card["privacy"], design.card["limits"]
        assert privacy["unit"].startswith("one sensor id and all that it")
        assert privacy["neighbours"].startswith("replace-one: ") and privacy["accounting"].startswith(f"{accounting}: ")
        text = " ".join(privacy["in_words"])
        assert all(privacy[name] in text for name in ("unit", "neighbours", "accounting"))
        assert ("day" in privacy["unit"]) == any("reports, not events" in limit for limit in limits) == bool(period)

    def test_attributes_and_public_inputs_are_named_with_their_ranges_and_limits(self):
        options = {"num_attributes": 1, "attribute_range": (0.0, 8.0), "num_public": 2, "public_range": (-3.0, 3.0)}
        card = make_design(**options).card
        assert card["mechanism"]["attributes"] == {"count": 1, "low": [0.0], "high": [8.0]}
        assert card["mechanism"]["public_inputs"] == {"count": 2, "low": [-3.0, -3.0], "high": [3.0, 3.0]}
        added = set(card["limits"]) - set(make_design().card["limits"])
        begin = ("Assumed: The public inputs", "Not covered: What a public input", "Not covered: attributes of sensors")
        assert len(added) == 3 and all(limit.startswith(begin) for limit in added)
        assert "- public inputs:\n  - count: 2\n" in card_text(card)
        assert make_design().card["mechanism"]["public_inputs"] == "none"

    def test_a_card_names_the_public_inputs_of_the_training_data(self):
        data = Trajectories(np.zeros((1, 2, 1)), np.zeros((1, 2, 3, 1)), public=np.ones((1, 2, 2)))
        assert describe_recording(data)["public_inputs"] == 2
        data = replace(data, labels=Labels(public=("count", "rain")), attributes={i: [1.0] for i in range(3)})
        assert describe_recording(data)["public_inputs"] == ["count", "rain"]
        assert describe_recording(data)["attributes"] == 1
        assert describe_recording(busy_data())["public_inputs"] == 0

    def test_the_card_has_the_fields_that_a_registry_is_told_to_take_from_it(self):
        page = (Path(__file__).parents[2] / "docs/own-system.md").read_text()
        rows = page.partition("| field of the registry |")[2].partition("\n\n")[0].splitlines()[2:]
        names = re.findall(r"`([\w.]+)`", " ".join(row.split("|")[2] for row in rows))
        assert len(names) > 10
        card = make_design().card
        for name in names:
            field = card
            for part in name.split("."):
                field = field[part]
            assert field is not None

    def test_a_report_becomes_part_of_the_card(self, tmp_path, designs):
        design = designs["total", "remove-one", "ball"]
        report = dpfuse.evaluate(design, busy_data(), num_draws=1)
        design.save(tmp_path / "a.dpfuse", report=report)
        card = dpfuse.load(tmp_path / "a.dpfuse").card
        assert card["errors"]["test"]["mse"] == report.mse
        assert card["calibration"]["0.95"] == report.coverage
        assert "test" not in design.training


def test_a_design_that_comes_with_dpfuse_is_loaded_by_its_name(tmp_path, monkeypatch, saved):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    assert dpfuse.load("freeway").structure.horizon is None
    with pytest.raises((FileRefused, FileNotFoundError)):
        dpfuse.load("../designs/freeway")  # a name is no path
    saved.rename("freeway")
    assert dpfuse.load("freeway").guarantee.accounting == "total"  # a file of that name comes first

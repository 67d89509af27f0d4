"""The file of the estimator: what it holds, and which files are refused."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace

import equinox as eqx
import pytest

import dpfuse
from dpfuse.errors import FileRefused
from support.designs import make_design, with_networks


def arrays_in(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.parametrize("options", [{}, {"accounting": "individual", "horizon": None}, {"spending": "constant"}])
def test_the_file_holds_nothing_of_f_and_g(tmp_path, options):
    design = make_design(spread=0.3, **options)
    design.export_estimator(tmp_path / "a")
    names = {name.removesuffix(".npy") for name in arrays_in(tmp_path / "a")} - {"metadata.json"}
    assert {name.split(".")[0] for name in names} == {
        "estimator",
        "squared_radius",
        "state_mean",
        "state_std",
        "std_scale",
    }
    text = arrays_in(tmp_path / "a")["metadata.json"].decode()
    assert "filter" not in text and "fusion" not in text and "stay" not in text


def test_designs_that_differ_in_f_and_g_have_the_same_file(tmp_path):
    design = make_design(spread=0.3)
    other = with_networks(design.policy, lambda leaf, rng: leaf + rng.normal(size=leaf.shape), seed=1)
    same_e = eqx.tree_at(lambda p: p.networks.estimator, other, design.policy.networks.estimator)
    wider = eqx.tree_at(lambda p: p.constants.measurement_high, same_e, 5 * design.policy.constants.measurement_high)
    for name, policy in [("a", design.policy), ("b", same_e), ("c", wider), ("d", other)]:
        replace(design, policy=policy).export_estimator(tmp_path / name)
    a, b, c, d = ((tmp_path / name).read_bytes() for name in "abcd")
    assert a == b == c
    assert a != d  # negative control: another E has another file


def test_a_design_file_and_an_estimator_file_are_not_exchangeable(tmp_path):
    design = make_design()
    design.save(tmp_path / "design")
    design.export_estimator(tmp_path / "estimator")
    with pytest.raises(FileRefused, match="must hold a estimator"):
        dpfuse.RemoteEstimator.load(tmp_path / "design")
    with pytest.raises(FileRefused, match="must hold a design"):
        dpfuse.load(tmp_path / "estimator")


def test_the_non_private_floor_has_no_estimator_file(tmp_path):
    with pytest.raises(ValueError, match="must have a guarantee to be released"):
        make_design(features="unbounded", spending="constant").export_estimator(tmp_path / "a")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 1}, "has estimator version 1, this is 5; export it again"),
        ({"structure": {}}, "is not an estimator that this version can read"),
        ({"fingerprint": "0" * 64}, "its fingerprint does not match"),
    ],
)
def test_a_file_that_was_edited_is_refused(tmp_path, change, message):
    make_design().export_estimator(tmp_path / "a")
    entries = arrays_in(tmp_path / "a")
    entries["metadata.json"] = json.dumps(json.loads(entries["metadata.json"]) | change)
    with zipfile.ZipFile(tmp_path / "a", "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    with pytest.raises(FileRefused, match=message):
        dpfuse.RemoteEstimator.load(tmp_path / "a")

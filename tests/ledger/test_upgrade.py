"""Another design and other streams on the same ledger: the accounts go on, and readers know which design made a row."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import dpfuse
from dpfuse import Ledger, cli
from dpfuse.errors import DesignChanged, DpfuseError, LedgerRefused
from dpfuse.guarantee import Guarantee
from dpfuse.ledger import public_rows, upgrade, verify
from dpfuse.ledger.memories import StoredMemory
from dpfuse.ledger.reader import design_fingerprints
from dpfuse.ledger.upgrades import check_upgrade
from dpfuse.public.signatures import Signer, make_key
from dpfuse.wire.intake import Intake
from dpfuse.wire.keys import Keys
from dpfuse.wire.serve import make_hub
from support.designs import make_design
from support.ledger_contract import STREAMS, entry, make_ledger_design, spent
from support.remote import assert_close
from support.wire import SECRET, Watch, call, make_centre, make_doors, signer_of

OTHER = "b" * 64


def other_design(accounting, fingerprint=OTHER, features="ball", dimension=2, horizon=None, **changes):
    fields = {"order": 2.0, "budget": 0.01, "adjacency": "remove-one", "accounting": accounting} | changes
    structure = SimpleNamespace(features=features, dimension=dimension, horizon=horizon, num_public=0)
    return SimpleNamespace(guarantee=Guarantee(**fields), structure=structure, fingerprint=fingerprint)


def test_accounts_steps_and_chains_go_on_with_another_design(closed_ledger):
    path, old = closed_ledger
    accounting = old.guarantee.accounting
    with Ledger.open(path, old) as ledger:
        before = spent(ledger) if accounting == "individual" else ledger.accounts("north").spent
    new = other_design(accounting)
    assert upgrade(path, new).fingerprint == OTHER
    with pytest.raises(LedgerRefused, match="belongs to another design; .* `dpfuse ledger upgrade`"):
        Ledger.open(path, old)
    with Ledger.open(path, new) as ledger:
        assert before == (spent(ledger) if accounting == "individual" else ledger.accounts("north").spent)
        with pytest.raises(LedgerRefused, match="step 3 of stream 'north' was skipped"):
            ledger.commit([entry(ledger, 3)])
        ledger.commit([entry(ledger, 5, stream, weight=0.001) for stream in STREAMS])
    assert verify(path).num_commits == 5  # three, the upgrade, and one more
    Ledger.open(path, new, is_full_check=False).close()
    rows = list(public_rows(path, "north"))
    assert [(row.step, row.design) for row in rows] == [(1, "a" * 16), (2, "a" * 16), (4, "a" * 16), (5, "b" * 16)]
    for earlier, later in zip(rows, rows[1:], strict=False):
        assert later == type(later).after(earlier.hash, *later[:-1])


@pytest.mark.parametrize("accounting", ["total", "individual"])
def test_accounts_go_on_with_another_interval(place, accounting):
    old = make_design(accounting, horizon=None if accounting == "individual" else 8)
    new = replace(old, interval_s=old.interval_s / 4)
    with place.create(old, STREAMS) as ledger:
        ledger.commit([entry(ledger, 1)])
        accounts = ledger.accounts("north")
        before = spent(ledger) if accounting == "individual" else accounts.spent
        assert before
    upgrade(place.path, new)
    with pytest.raises(LedgerRefused, match="belongs to another design"):
        place.open(old)
    with place.open(new) as ledger:
        assert before == (spent(ledger) if accounting == "individual" else ledger.accounts("north").spent)
        ledger.commit([entry(ledger, 2)])
        after = spent(ledger) if accounting == "individual" else ledger.accounts("north").spent
        assert (min(after.values()) > max(before.values())) if accounting == "individual" else after > before


@pytest.mark.parametrize(("features", "dimension"), [("box", 3), ("orthant", 2), ("ball", 1)])
@pytest.mark.parametrize("adjacency", ["remove-one", "replace-one"])
def test_debits_of_designs_with_other_features_add_up_in_one_unit(place, features, dimension, adjacency):
    with place.create(other_design("individual", adjacency=adjacency), STREAMS) as ledger:
        ledger.commit([entry(ledger, 1)])
        before = spent(ledger)[7]
    new = other_design("individual", "c" * 64, features, dimension, adjacency=adjacency)
    upgrade(place.path, new)
    with place.open(new) as ledger:
        mechanism, values = ledger.terms.mechanism, np.full((1, dimension), 0.005)
        charged = mechanism.charge(ledger.accounts("north"), 0.01, [7], values)
        ledger.commit([dpfuse.Entry("north", 2, charged, [7])])
        assert spent(ledger)[7] == before + mechanism.factor * dimension * 5242**2
    verify(place.path)


@pytest.mark.parametrize(
    ("change", "value"),
    [("order", 3.0), ("budget", 0.02), ("budget", 0.005), ("adjacency", "replace-one"), ("accounting", "other")],
)
def test_a_design_whose_accounts_are_not_comparable_is_refused_with_the_reason(closed_ledger, change, value):
    path, old = closed_ledger
    accounting = old.guarantee.accounting
    value = {"total": "individual", "individual": "total"}[accounting] if value == "other" else value
    tip = verify(path).tip
    with pytest.raises(LedgerRefused, match=f"keeps accounts for {change} .* cannot be compared .* train the design"):
        upgrade(path, other_design(**{"accounting": accounting, change: value}))
    assert verify(path).tip == tip
    Ledger.open(path, old).close()


def test_streams_are_added_and_retired_and_a_retired_account_goes_on(place):
    design = make_ledger_design("total")
    with place.create(design, STREAMS) as ledger:
        [row] = ledger.commit([entry(ledger, 1, "south", weight=0.05)])
    assert upgrade(place.path, add=["west"], retire=["south"]).streams == ("north", "west")
    with place.open(design) as ledger:
        assert ledger.accounts("west").spent == 0
        with pytest.raises(ValueError, match="stream must be one of north, west, got 'south'"):
            ledger.accounts("south")
        ledger.commit([entry(ledger, 2, "west", weight=0.01)])
    upgrade(place.path, add=["south"])
    with place.open(design) as ledger:
        assert ledger.accounts("south").spent == row.cost and ledger.last_step("south") == 1
        ledger.commit([entry(ledger, 3, name, weight=0.01) for name in ledger.streams])
    assert verify(place.path).num_commits == 5
    assert [row.step for row in public_rows(place.path, "south")] == [1, 3]


def test_what_g_and_e_remember_is_not_used_for_other_streams(place):
    """Their number and the design are the same, so nothing but the names shows that it is of other rows."""
    design = make_ledger_design("individual")
    with place.create(design, STREAMS) as ledger:
        ledger.commit([entry(ledger, 1, stream) for stream in STREAMS])
        ledger.keep_memory(StoredMemory(1, b"north, south"))
        assert [memory.step for memory in ledger.memories()] == [1]
    upgrade(place.path, add=["west"], retire=["north"])
    with place.open(design) as ledger:
        assert len(ledger.streams) == len(STREAMS) and ledger.memories() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"add": ["north"]}, "streams must be new to be added and present to be retired, got north"),
        ({"retire": ["west"]}, "streams must be new to be added and present to be retired, got west"),
        ({"retire": STREAMS}, "retire must leave at least one stream"),
        ({}, "an upgrade must change something"),
        ({"design": other_design("total", horizon=4)}, "the design must end after step 4"),
    ],
)
def test_an_upgrade_that_cannot_be_is_refused_and_changes_nothing(place, options, message):
    design = make_ledger_design("total")
    with place.create(design, STREAMS) as ledger:
        ledger.commit([entry(ledger, 4)])
    with pytest.raises(ValueError, match=message):
        upgrade(place.path, **options)
    place.open(design).close()


def test_an_upgrade_is_refused_while_a_centre_writes(closed_ledger):
    path, design = closed_ledger
    with Ledger.open(path, design), pytest.raises(LedgerRefused, match="has a writer already"):
        upgrade(path, add=["west"])


def test_an_upgrade_that_fails_before_its_commit_leaves_the_ledger_as_it_was(closed_ledger, monkeypatch):
    path, design = closed_ledger
    tip, own = verify(path).tip, Ledger._insert

    def fail(self, *arguments):
        own(self, *arguments)
        raise OSError(5, "in a test")

    monkeypatch.setattr(Ledger, "_insert", fail)
    with pytest.raises(LedgerRefused):
        upgrade(path, add=["west"])
    monkeypatch.undo()
    assert verify(path).tip == tip
    Ledger.open(path, design).close()


@given(
    st.lists(
        st.tuples(st.sampled_from(["commit", "design", "add", "retire"]), st.sampled_from([0.02, 0.05, 0.09])),
        min_size=3,
        max_size=12,
    )
)
@settings(max_examples=15, deadline=None, derandomize=True)
@pytest.mark.parametrize("accounting", ["total", "individual"])
def test_no_account_exceeds_its_budget_over_any_sequence_of_upgrades(make_place, accounting, operations):
    """Recomputed here from what was committed."""
    place, design = make_place(), make_ledger_design(accounting)
    place.create(design, STREAMS).close()
    paid: dict[object, int] = {}
    for step, (kind, weight) in enumerate(operations, 1):
        try:
            if kind == "commit":
                with place.open(design) as ledger:
                    one = entry(ledger, step, ledger.streams[0], weight, np.array([7]))
                    ledger.commit([one])
                    owner = ledger.streams[0] if accounting == "total" else 7
                    paid[owner] = paid.get(owner, 0) + int(one.charged.debits.sum())
            elif kind == "design":
                other = other_design(accounting, f"{step:064x}", dimension=2)
                upgrade(place.path, other)
                design = other
            else:
                upgrade(place.path, **{kind: ["east" if kind == "add" else "north"]})
        except (DpfuseError, ValueError):
            continue
    budget = verify(place.path).terms.mechanism.budget
    assert all(amount <= budget for amount in paid.values())


@pytest.mark.parametrize("accounting", ["total", "individual"])
@pytest.mark.slow
def test_a_centre_goes_on_with_a_new_design_and_readers_follow(tmp_path, accounting):
    """The estimates of the new design are those of its remote estimator, which begins at the upgrade."""
    old = make_design(accounting, spread=0.5, horizon=6)
    new = make_design(accounting, spread=0.5, seed=1, horizon=12, dimension=3)
    path, reports = tmp_path / "road.db", {5: [0.5, -0.5], 6: [0.1, 0.9]}
    with dpfuse.FusionCentre(old, path, create=True) as centre:
        first = [centre.step(reports) for _ in range(3)]
    upgrade(path, new)
    with dpfuse.FusionCentre(new, path) as centre:
        assert centre.now == 4 and centre.past == []
        second = [centre.step(reports) for _ in range(2)]
    with dpfuse.FusionCentre(new, path) as centre:
        assert [one.row.step for one in centre.past] == [4, 5]
        assert [(one.mean, one.std) for one in centre.past] == [(one.mean, one.std) for one in second]
        asked = float(centre._carry.query.fusion_weight[0])
        second.append(centre.step(reports))
    if accounting == "total":
        assert second[0].row.budget_left == first[-1].row.budget_left - second[0].row.cost
        assert second[2].row.fusion_weight == int(asked * 2**20)
    old.export_estimator(tmp_path / "old.estimator")
    new.export_estimator(tmp_path / "new.estimator")
    reader = dpfuse.RemoteEstimator.load(tmp_path / "old.estimator")
    for one in first:
        assert_close(reader.update(one.row.to_dict()), (one.mean, one.std))
    with pytest.raises(
        DesignChanged, match=f"whose design is {old.fingerprint[:16]}; if the centre's ledger was upgraded"
    ):
        reader.update(second[0].row.to_dict())
    reader = dpfuse.RemoteEstimator.load(tmp_path / "new.estimator")
    for one in second:
        assert_close(reader.update(one.row.to_dict()), (one.mean, one.std))


@pytest.mark.parametrize("accounting", ["total", "individual"])
def test_an_upgrade_is_checked_while_a_centre_writes_and_changes_nothing(tmp_path, accounting):
    design, path = make_design(accounting, spread=0.5, horizon=6), tmp_path / "road.db"
    other = make_design(accounting, spread=0.5, horizon=6, budget=9.0)
    short = make_design(accounting, spread=0.5, horizon=3)
    with dpfuse.FusionCentre(design, path, create=True) as centre:
        for _ in range(4):
            centre.step({5: [0.5, -0.5]})
        before = verify(path)
        check_upgrade(path, design, ["main", "west"])
        check_upgrade(path, design, ["west"])
        with pytest.raises(LedgerRefused, match="the design has budget 9.0"):
            check_upgrade(path, other, ["main"])
        with pytest.raises(ValueError, match="must end after step 4"):
            check_upgrade(path, short, ["main"])
        assert verify(path) == before and centre.step({5: [0.5, -0.5]}).row.step == 5


@pytest.mark.parametrize("accounting", ["total", "individual"])
def test_steps_go_on_if_every_stream_is_replaced(tmp_path, accounting):
    design, path = make_design(accounting, spread=0.5, horizon=6), tmp_path / "road.db"
    with dpfuse.FusionCentre(design, path, create=True) as centre:
        for _ in range(4):
            centre.step({5: [0.5, -0.5]})
    upgrade(path, add=["west"], retire=["main"])
    with dpfuse.FusionCentre(design, path) as centre:
        assert centre.now == 5 and centre.step({5: [0.5, -0.5]}, "west").row.step == 5
    with pytest.raises(ValueError, match="the design must end after step 5"):
        upgrade(path, make_design(accounting, spread=0.5, seed=1, horizon=5), add=["main"], retire=["west"])


@pytest.mark.parametrize("accounting", ["total", "individual"])
def test_the_guarantee_that_is_shown_counts_the_budgets_of_retired_streams(tmp_path, accounting):
    """A sensor may have spent the budget of the stream that was retired, and has another in the new one."""
    design, path = make_design(accounting, spread=0.5, horizon=6), tmp_path / "road.db"
    Ledger.create(path, design).close()
    upgrade(path, add=["west"], retire=["main"])
    upgrade(path, add=["north"], retire=["west"])
    with Ledger.open(path, design) as ledger:
        centre, signer = make_centre(design, ledger), signer_of(ledger)
        hub = make_hub(ledger, centre, signer)
        watch = Watch(centre, hub)
        _, (_, reading_app) = make_doors(centre, watch, hub, Intake(centre, Keys.from_secret(SECRET)), signer)
        shown, page = (call(reading_app, "GET", path) for path in ("/v1/guarantee", "/"))
        hub.close()
    assert shown.json()["streams"] == ["north"] and shown.json()["streams_in_ledger"] == 3
    has_several = accounting == "total"
    assert ("a sensor in all 3 streams has 3 budgets" in page.text) == has_several
    assert ("everything ever published here" in shown.text) == (not has_several)


def test_old_rows_keep_the_signature_of_their_design(tmp_path):
    old, new = make_design(), make_design(seed=1, spread=0.1)
    path, key = tmp_path / "road.db", tmp_path / "key"
    make_key(key)
    with dpfuse.FusionCentre(old, path, create=True) as centre:
        row = centre.step({}).row
    with Ledger.open(path, old) as ledger:
        before = Signer(key, ledger.terms.ledger_id, old.fingerprint).to_message(row)
    upgrade(path, new)
    with Ledger.open(path, new) as ledger, dpfuse.FusionCentre(new, ledger) as centre:
        signer = Signer(key, ledger.terms.ledger_id, new.fingerprint, design_fingerprints(path))
        assert make_hub(ledger, centre, signer).messages("main") == [before]


def test_the_command_changes_design_and_streams(tmp_path, monkeypatch):
    old, new = make_design(), make_design(seed=1, spread=0.1)
    new.save(tmp_path / "new.dpfuse")
    monkeypatch.chdir(tmp_path)
    Ledger.create("road.db", old).close()
    words = ["ledger", "upgrade", "road.db", "--design", "new.dpfuse", "--add-stream", "west"]
    result = CliRunner().invoke(cli.app, words)
    assert f"design {new.fingerprint[:16]} with the streams main, west; make a backup" in result.output
    shown = json.loads(CliRunner().invoke(cli.app, ["ledger", "show", "road.db", "--json"]).output)
    assert shown["design"] == new.fingerprint and sorted(shown["streams"]) == ["main", "west"]

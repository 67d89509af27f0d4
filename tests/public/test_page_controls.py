"""The controls and the status of the page, in a real browser."""

from __future__ import annotations

import pytest

from dpfuse.ledger import public_rows
from dpfuse.policy import Design
from dpfuse.wire.key_file import KeyFile
from support.designs import departing, make_design
from support.page import at_step, centre_at, column, in_status, number_in
from support.wire import address_of, command, endless_design, wait_for

pytestmark = pytest.mark.slow


def test_a_page_opened_later_shows_the_last_minutes_also_as_a_table(watch, visit):
    published = [watch.tick()[0] for _ in range(15)][:2:-1]
    page = visit(watch.address)
    at_step(page, published[0].row.step)
    page.click("#table-panel summary")
    page.wait_for_selector("#table-body tr")
    assert column(page, 1) == [one.row.step for one in published]
    assert column(page, 3) == pytest.approx([one.mean[0] for one in published], abs=0.06)  # after the time of day


def test_the_stream_can_be_chosen(watch, visit):
    north, south = watch.tick()
    page = visit(watch.address)
    at_step(page, north.row.step)
    assert number_in(page, "mean") == pytest.approx(north.mean[0], abs=0.06)
    page.select_option("#stream", "south")
    wait_for(lambda: number_in(page, "mean") == pytest.approx(south.mean[0], abs=0.06))
    page.reload()
    assert page.input_value("#stream") == "south"


def test_pausing_stops_the_drawing_and_not_the_feed(watch, visit):
    page = visit(watch.address)
    before = watch.tick()[0].row.step
    at_step(page, before)
    page.click("#pause")
    assert page.text_content("#pause") == "Resume"
    for _ in range(3):
        watch.tick()
    page.wait_for_timeout(300)
    assert page.get_attribute("body", "data-step") == str(before)
    page.click("#pause")
    at_step(page, before + 3)


def test_with_a_new_ledger_the_page_starts_from_its_first_step(tmp_path, visit):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with centre_at(tmp_path / "one", endless_design()) as watch:
        page = visit(watch.address, can_break_off=True)
        for _ in range(9):
            watch.tick()
        at_step(page, 9)
    with centre_at(tmp_path / "two", endless_design(), watch.port) as other:
        other.tick()
        at_step(page, 1)


def test_the_page_continues_after_the_centre_was_killed(tmp_path, visit):
    """The whole program, with its own clock, killed while it works and started again."""
    endless_design().save(tmp_path / "design.dpfuse")
    KeyFile.create(tmp_path / "centre.keys")
    options = [
        "serve",
        "--design",
        "design.dpfuse",
        "--ledger",
        "ledger.db",
        "--keys",
        "centre.keys",
        "--interval",
        "0.2",
        "--port",
        "0",
    ]
    with command(*options, "--new", "--reading-port", "0", folder=tmp_path) as first:
        address = address_of(first)
        page = visit(address + "/", can_break_off=True)
        in_status(page, "live")
        page.click("#table-panel summary")
        page.evaluate("window.isTheSame = true")
        wait_for(lambda: number_in(page, "step") > 10)
        first.process.kill()
        in_status(page, "lost")
        before = number_in(page, "step")
    with command(*options, "--reading-port", address.rpartition(":")[2], folder=tmp_path) as second:
        assert address_of(second) == address
        in_status(page, "live")
        wait_for(lambda: number_in(page, "step") > before + 10)
        assert page.evaluate("window.isTheSame")
        assert "no noise is drawn twice" in page.text_content("#notice")
        wait_for(lambda: column(page, 1)[0] > before)
        shown = column(page, 1)
    # A busy machine may skip a step, so the ledger tells which steps there were.
    kept = [row.step for row in public_rows(tmp_path / "ledger.db", "main", start=int(shown[-1]))]
    assert shown == [step for step in reversed(kept) if step <= shown[0]]


def test_without_releases_for_a_while_the_status_is_stale(watch, visit):
    page = visit(watch.address)
    watch.tick()
    in_status(page, "live")
    in_status(page, "stale")
    watch.tick()
    in_status(page, "live")


def test_the_page_says_that_a_finite_design_is_over(tmp_path, visit):
    with centre_at(tmp_path, make_design("total", horizon=2)) as watch:
        page = visit(watch.address)
        watch.tick(), watch.tick()
        watch.status = "over"
        in_status(page, "over")
        assert "has made its 2 releases" in page.text_content("#notice")
        page.context.close()  # before the centre stops, or the page would log errors


def test_the_page_says_that_the_budget_is_spent(tmp_path, visit):
    design = make_design("total", horizon=6)
    spender = Design(departing(design.policy, 12.0), design.guarantee, design.interval_s)
    with centre_at(tmp_path, spender) as watch:
        page = visit(watch.address)
        watch.tick()
        in_status(page, "spent")
        assert "as noise alone" in page.text_content("#notice")
        assert number_in(page, "budget") < 1e-3
        page.context.close()


def test_the_page_says_that_the_centre_failed_when_it_is_gone(tmp_path, visit):
    with centre_at(tmp_path, endless_design()) as watch:
        page = visit(watch.address, can_break_off=True)
        watch.tick()
        in_status(page, "live")
        watch.status = "failed"
    in_status(page, "failed")


def test_the_page_shows_public_inputs_with_their_units_and_ages(tmp_path, visit):
    plain = make_design("total", horizon=6, num_public=3, public_range=(-9.0, 9.0))
    with centre_at(tmp_path, plain.with_labels(public=["rain [mm]", "<b>count</b>", "flow"])) as watch:
        page = visit(watch.address)
        watch.centre.receive_inputs("main", 1, [2.5, -1, None])
        watch.tick()
        watch.centre.receive_inputs("main", 2, [None, 3, None])
        watch.tick()
        at_step(page, 2)
        assert page.text_content("#inputs") == "Public inputs: rain 2.50 mm (0.2 s old), <b>count</b> 3.00, flow –"
        page.context.close()


SAY = """async ({ stds, others }) => {
  const { makeReadout } = await import('/static/readout.js');
  const { History } = await import('/static/history.js');
  const labels = [{ name: 'a', unit: '' }, { name: 'b', unit: '' }];
  const own = { interval_s: 0.2, horizon: null, budget: 1, grid: 1, accounting: 'individual', inputs: [] };
  const settings = { ...own, labels, prior_std: [10, 10] };
  const history = new History(3000);
  const readout = makeReadout(settings, { coordinate: 0 }, history);
  const add = (step, std) => {
    const point = { step, mean: [1, 1], std, release: [0], fusion_weight: 1, loss: 0 };
    history.add(point);
    readout.take(point);
  };
  stds.forEach((std, index) => add(index + 1, [std, others[index]]));
  readout.draw();
  return document.getElementById('band').textContent.split(' · ')[0];
}"""


@pytest.mark.parametrize(
    ("stds", "others", "word"),
    [
        ([9.0] * 400, [1.0] * 400, "Warming up"),
        ([1.0] + [9.0] * 400, [1.0] * 401, "No news"),
        ([1.0] * 3, [9.0] * 3, "Warming up"),
        ([1.0] * 4, [1.0, 9.0, 9.0, 9.0], "No news"),
        ([9.0, 1.0], [9.0, 1.0], "95% band: -1.0 to 3.0"),
    ],
)
def test_a_page_that_has_settled_once_says_no_news_however_long_nothing_comes(watch, visit, stds, others, word):
    """As `RemoteEstimator`, of any coordinate."""
    page = visit(watch.address)
    said = page.evaluate(SAY, {"stds": stds, "others": others})
    assert said.replace("−", "-") == word

"""The page: its files, and in a real browser what it shows."""

from __future__ import annotations

from importlib import resources

import httpx
import pytest

from support.page import at_step, centre_at, column, in_status, number_in
from support.wire import endless_design, rig, wait_for


@pytest.fixture(scope="module")
def still(tmp_path_factory):
    """A centre with two streams that makes no step."""
    with rig(tmp_path_factory.mktemp("still"), streams=("north", "south")) as live:
        yield live


def test_the_headers_forbid_content_from_other_servers(still):
    for path in ("/", "/static/page.js", "/static/vendor/uPlot/uPlot.iife.min.js"):
        answer = still.get(path)
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert set(policy.replace(";", "").split()) & {"*", "https:", "data:", "'unsafe-inline'"} == set()
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["", "nothing.js", "../feed.py", "%2e%2e/feed.py", "/etc/passwd", "vendor"])
def test_only_files_of_the_page_are_served(still, path):
    answer = still.get(f"/static/{path}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_uplot_is_included_with_its_licence():
    folder = resources.files("dpfuse.public") / "static" / "vendor" / "uPlot"
    assert "(v1.6.32)" in (folder / "uPlot.iife.min.js").read_text()[:100]
    assert "MIT License" in (folder / "LICENSE").read_text()


def test_the_guarantee_is_on_the_page_without_a_script(still):
    text, statement = still.get("/").text, still.get("/v1/guarantee").json()
    assert statement["in_words"][0] in text
    assert "is right at most 73 times in 100" in text
    assert "remove-one" in text and "what is left of it is private" in text
    for sentence in statement["assumed"] + statement["uncovered"]:
        assert sentence in text


def test_labels_are_shown_as_text_and_never_as_html(tmp_path):
    with rig(tmp_path, labels=["</script><img src=x> [<b>]"]) as live:
        text = live.get("/").text
        assert "<img src=x>" not in text and "<b>" not in text
    (folder := tmp_path / "two").mkdir()
    with pytest.raises(ValueError, match="labels must hold 1, one for each coordinate of the state, got 2"):
        with rig(folder, labels=["one", "two"]):
            pass


def test_the_page_shows_every_release_and_makes_no_request_to_another_server(watch, visit):
    page = visit(watch.address)
    for _ in range(5):
        one = watch.tick()[0]
        at_step(page, one.row.step)
        assert number_in(page, "step") == one.row.step
        assert number_in(page, "mean") == pytest.approx(one.mean[0], abs=0.06)
        assert number_in(page, "spread") == pytest.approx(1.96 * one.std[0], abs=0.06)
    in_status(page, "live")
    assert (page.text_content("#quantity"), page.text_content("#unit")) == ("Density", "veh/km")
    assert page.title() == "Density · dpfuse live"


def test_the_page_continues_after_a_restart_of_the_centre(tmp_path, visit):
    with centre_at(tmp_path, endless_design()) as watch:
        page = visit(watch.address, can_break_off=True)
        in_status(page, "connecting")
        for step in range(1, 4):
            watch.tick()
            at_step(page, step)
        page.evaluate("window.isTheSame = true")
    in_status(page, "lost")
    with centre_at(tmp_path, endless_design(), watch.port) as again:
        page.wait_for_selector("#notice:not([hidden])")
        assert "continues at step 4" in page.text_content("#notice")
        again.tick()
        at_step(page, 4)
        in_status(page, "live")
        assert page.evaluate("window.isTheSame")
        # A page opened now shows the releases before the restart.
        newcomer = visit(again.address, can_break_off=True)
        at_step(newcomer, 4)
        newcomer.click("#table-panel summary")
        newcomer.wait_for_selector("#table-body tr")
        assert column(newcomer, 1) == [4, 3, 2, 1]


def test_only_a_replay_shows_truth_error_latency_and_reports(tmp_path, visit):
    private = ["#error", "#reports", "#latency", "#reports-chart", "#latency-chart", "#replay-note"]
    for is_replay in (True, False):
        (folder := tmp_path / str(is_replay)).mkdir()
        with centre_at(folder, endless_design(), replay=is_replay) as watch:
            page = visit(watch.address)
            truth = {"stream": "main", "step": 1, "state": [1.25]}
            code = httpx.post(f"{watch.address}v1/replay/truth", json=truth, trust_env=False).status_code
            assert code == (202 if is_replay else 404)
            watch.tick()
            at_step(page, 1)
            assert [page.is_visible(name) for name in private] == [is_replay] * len(private)
            assert ("The true value was inside the band" in page.text_content("#coverage")) == is_replay
            assert ("truth 1.2" in page.text_content("#estimate-key")) == is_replay
            page.context.close()


def test_the_browser_refuses_a_request_to_another_server(watch, browser):
    """Negative control for the fixture `visit`."""
    context = browser.new_context()
    page = context.new_page()
    refused = []
    page.on("console", lambda message: refused.append(message.text))
    page.goto(watch.address)
    answer = page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'it went', () => 'refused')")
    assert answer == "refused"
    wait_for(lambda: page.title() and any("Content Security Policy" in text for text in refused))
    context.close()

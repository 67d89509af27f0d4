"""The live page: in a real browser, with a centre whose clock the test moves."""

from __future__ import annotations

import itertools
import socket
import threading
from contextlib import contextmanager
from functools import partial
from importlib import resources

import httpx
import pytest
import uvicorn

from dpfuse.centre.centre import FusionCentre
from dpfuse.ledger import Ledger, public_rows
from dpfuse.policy import Design
from dpfuse.privacy.budget import GRID, as_loss
from dpfuse.public import feed as feed_module
from dpfuse.public.hub import Hub
from dpfuse.public.replay_notes import ReplayNotes
from dpfuse.wire.http import make_app
from dpfuse.wire.intake import Intake
from dpfuse.wire.tokens import Tokens, new_secret
from support.designs import departing, make_design
from support.parts import needs
from support.wire import PATIENCE_S, SECRET, Watch, address_of, command, events, following, rig, serving, wait_for

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LABELS = ["Density [veh/km]"]
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 320, "height": 640}


class TestFeed:
    def test_a_point_for_each_release(self, tmp_path):
        with rig(tmp_path, make_design("total", spread=0.3)) as live, serving(live.app) as address:
            published = [live.tick()[0] for _ in range(3)]
            with following(address, path="feed") as lines:
                status, *points = events(lines, 4)
        assert status == {"status": "running", "first_step": 1, "step": 3, "design": live.design.fingerprint}
        for point, one in zip(points, published, strict=True):
            assert set(point) == {"step", "mean", "std", "release", "fusion_weight", "loss", "loss_left"}
            assert point["step"] == one.row.step
            assert point["mean"] == pytest.approx(one.mean, rel=1e-5)
            assert point["std"] == pytest.approx(one.std, rel=1e-5)
            assert (point["release"], point["fusion_weight"]) == (one.row.to_dict()["release"], one.row.fusion_weight)
            assert point["loss"] == pytest.approx(as_loss(2.0, one.row.cost), rel=1e-5)
            assert point["loss_left"] == pytest.approx(as_loss(2.0, one.row.budget_left), rel=1e-5)

    @pytest.mark.parametrize("features, longest", [("ball", 1), ("box", 2)])
    def test_with_individual_accounts_the_loss_is_the_most_that_a_sensor_could_pay(self, tmp_path, features, longest):
        design = make_design("individual", features=features, spread=0.3, horizon=None)
        with rig(tmp_path, design) as live, serving(live.app) as address:
            [one] = live.tick()
            with following(address, path="feed") as lines:
                _, point = events(lines, 2)
        assert "loss_left" not in point
        assert point["loss"] == pytest.approx(2.0 * longest * (one.row.fusion_weight / GRID) ** 2 / 2, rel=1e-5)

    def test_whoever_comes_back_goes_on_where_they_were(self, tmp_path):
        with rig(tmp_path) as live, serving(live.app) as address:
            for _ in range(5):
                live.tick()
            for options in ({"params": {"start": 4}}, {"headers": {"Last-Event-ID": "3"}}):
                with following(address, path="feed", **options) as lines:
                    assert [event["step"] for event in events(lines, 3)[1:]] == [4, 5]

    def test_nobody_goes_back_further_than_some_minutes(self, tmp_path, monkeypatch):
        monkeypatch.setattr(feed_module, "HISTORY_S", 0.6)
        with rig(tmp_path) as live, serving(live.app) as address:
            for _ in range(6):
                live.tick()
            with following(address, path="feed") as lines:
                assert [event["step"] for event in events(lines, 4)[1:]] == [4, 5, 6]

    def test_the_state_is_told_when_it_changes_and_every_second(self, tmp_path, monkeypatch):
        monkeypatch.setattr(feed_module, "HEARTBEAT_S", 0.05)
        with rig(tmp_path) as live, serving(live.app) as address, following(address, path="feed") as lines:
            assert [event["status"] for event in events(lines, 3)] == ["running"] * 3
            live.watch.status = "over"
            wait_for(lambda: events(lines, 1)[0]["status"] == "over")  # after those that were on their way

    def test_a_replay_also_tells_what_is_nobodys(self, tmp_path):
        with rig(tmp_path, replay=True) as live, serving(live.app) as address:
            truth = {"stream": "main", "step": 1, "state": [3.25]}
            live.call("POST", "/v1/replay/truth", json=truth)
            live.send(live.report(1), live.report(2))
            [one] = live.tick()
            live.tick()
            with following(address, path="feed") as lines:
                _, known, unknown = events(lines, 3)
        assert known["truth"] == [3.25]
        assert known["error"] == pytest.approx([one.mean[0] - 3.25], rel=1e-4)
        assert (known["reports"], known["latency_ms"]) == (2, 1.0)
        assert (unknown["truth"], unknown["error"], unknown["reports"]) == (None, None, 0)

    def test_an_unknown_stream_is_not_found(self, tmp_path):
        with rig(tmp_path) as live:
            answer = live.get("/v1/streams/nowhere/feed")
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


@pytest.fixture(scope="module")
def still(tmp_path_factory):
    """A centre with two streams that does nothing."""
    with rig(tmp_path_factory.mktemp("still"), streams=("north", "south")) as live:
        yield live


class TestFiles:
    def test_nothing_may_come_from_elsewhere(self, still):
        for path in ("/", "/static/page.js", "/static/vendor/uPlot/uPlot.iife.min.js"):
            answer = still.get(path)
            assert answer.status_code == 200
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'")
            assert set(policy.replace(";", "").split()) & {"*", "https:", "data:", "'unsafe-inline'"} == set()
            assert answer.headers["x-content-type-options"] == "nosniff"

    @pytest.mark.parametrize("path", ["", "nothing.js", "../feed.py", "%2e%2e/feed.py", "/etc/passwd", "vendor"])
    def test_only_the_pages_own_files_are_served(self, still, path):
        answer = still.get(f"/static/{path}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")

    def test_uplot_is_there_with_its_licence(self):
        folder = resources.files("dpfuse.public") / "static" / "vendor" / "uPlot"
        assert "(v1.6.32)" in (folder / "uPlot.iife.min.js").read_text()[:100]
        assert "MIT License" in (folder / "LICENSE").read_text()

    def test_the_guarantee_is_on_the_page_without_a_script(self, still):
        text, promise = still.get("/").text, still.get("/v1/guarantee").json()
        assert promise["in_words"][0] in text
        assert "is right at most 73 times in 100" in text
        assert "remove-one" in text and "what is left of it is private" in text
        for sentence in promise["assumed"] + promise["uncovered"]:
            assert sentence in text

    def test_labels_are_text_whatever_is_in_them(self, tmp_path):
        with rig(tmp_path, labels=["</script><img src=x> [<b>]"]) as live:
            text = live.get("/").text
            assert "<img src=x>" not in text and "<b>" not in text
        (folder := tmp_path / "two").mkdir()
        with pytest.raises(ValueError, match="labels must hold 1, one for each coordinate of the state, got 2"):
            with rig(folder, labels=["one", "two"]):
                pass


@pytest.fixture(scope="module")
def browser():
    """One Chromium for all tests here."""
    program = needs("chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=FLAGS, timeout=1000 * PATIENCE_S)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser):
    """Opens pages; at the end there must have been no error, and no request to anywhere but the centre."""
    contexts, troubles = [], []

    def open_page(address, *, can_break_off=False, viewport=WIDE, **options):
        context = browser.new_context(viewport=viewport, **options)
        context.set_default_timeout(1000 * PATIENCE_S)
        context.add_init_script(NOTE_STATES)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
        page.on("request", lambda request: request.url.startswith(address) or troubles.append(f"asked {request.url}"))

        def hear(message):
            is_break = can_break_off and "net::ERR_" in message.text  # the browser's own word for a centre that is gone
            if message.type in ("error", "warning") and not is_break:
                troubles.append(f"{message.type}: {message.text}")

        page.on("console", hear)
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []


@contextmanager
def centre_at(folder, design, port=0, streams=("main",), replay=False):
    """A centre on the ledger in that folder, new or not, behind a server; breaks off all connections at the end."""
    path = folder / "ledger.db"
    ledger = Ledger.open(path, design) if path.exists() else Ledger.create(path, design, streams)
    centre = FusionCentre(design, ledger)
    hub = Hub({name: ledger.last_step(name) for name in ledger.streams}, partial(public_rows, path), centre.past)
    watch = Watch(centre, hub)
    app = make_app(centre, watch, hub, Intake(centre, Tokens(SECRET), ReplayNotes() if replay else None), labels=LABELS)
    listener = socket.create_server(("127.0.0.1", port))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    watch.address, watch.port = f"http://127.0.0.1:{listener.getsockname()[1]}/", listener.getsockname()[1]
    try:
        yield watch
    finally:
        hub.close()
        server.should_exit = True
        thread.join(PATIENCE_S)
        listener.close()
        ledger.close()


@pytest.fixture(scope="module")
def endless() -> Design:
    return make_design("individual", spread=0.3, horizon=None, expected_stay=4.0)


@pytest.fixture(scope="module")
def watch(endless, tmp_path_factory):
    """A centre with two streams that the tests share: each moves it on by some steps."""
    with centre_at(tmp_path_factory.mktemp("shared"), endless, streams=("north", "south")) as shared:
        shared.tick()
        yield shared


def at_step(page, step):
    page.wait_for_selector(f"body[data-step='{step}']")


def in_state(page, state):
    """Waits until the page comes to it, after those that were waited for before; it may have left it again since.

    A page is live for two seconds after a release, and on a busy machine nobody may look in time.
    """
    wait_for(lambda: page.evaluate(TAKE_STATE, state))


# What state a page says it is in, again and again.
NOTE_STATES = """
  window.states = [];
  new MutationObserver(() => window.states.push(document.body.dataset.status))
    .observe(document, { subtree: true, attributeFilter: ["data-status"] });
"""
TAKE_STATE = "state => window.states.splice(0, window.states.indexOf(state) + 1).length > 0"


def number_in(page, name):
    return float(page.text_content(f"#{name}").replace("−", "-").replace(",", "").replace("–", "nan"))


class TestPage:
    def test_it_shows_every_release_and_no_outside_request_is_made(self, watch, visit):
        page = visit(watch.address)
        for _ in range(5):
            one = watch.tick()[0]
            at_step(page, one.row.step)
            assert number_in(page, "step") == one.row.step
            assert number_in(page, "mean") == pytest.approx(one.mean[0], abs=0.06)
            assert number_in(page, "spread") == pytest.approx(1.96 * one.std[0], abs=0.06)
        in_state(page, "live")
        assert (page.text_content("#quantity"), page.text_content("#unit")) == ("Density", "veh/km")
        assert page.title() == "Density · dpfuse live"

    def test_who_comes_late_sees_the_last_minutes_also_as_a_table(self, watch, visit):
        published = [watch.tick()[0] for _ in range(15)][:2:-1]
        page = visit(watch.address)
        at_step(page, published[0].row.step)
        page.click("#table-panel summary")
        page.wait_for_selector("#table-body tr")
        assert column(page, 1) == [one.row.step for one in published]
        assert column(page, 2) == pytest.approx([one.mean[0] for one in published], abs=0.06)

    def test_streams_can_be_chosen(self, watch, visit):
        north, south = watch.tick()
        page = visit(watch.address)
        at_step(page, north.row.step)
        assert number_in(page, "mean") == pytest.approx(north.mean[0], abs=0.06)
        page.select_option("#stream", "south")
        wait_for(lambda: number_in(page, "mean") == pytest.approx(south.mean[0], abs=0.06))
        page.reload()
        assert page.input_value("#stream") == "south"

    def test_pausing_stops_the_picture_not_the_stream(self, watch, visit):
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

    def test_it_survives_a_restart_of_the_centre(self, tmp_path, endless, visit):
        with centre_at(tmp_path, endless) as watch:
            page = visit(watch.address, can_break_off=True)
            in_state(page, "connecting")
            for step in range(1, 4):
                watch.tick()
                at_step(page, step)
            page.evaluate("window.isTheSame = true")
        in_state(page, "lost")
        with centre_at(tmp_path, endless, watch.port) as again:
            page.wait_for_selector("#notice:not([hidden])")
            assert "continues at step 4" in page.text_content("#notice")
            again.tick()
            at_step(page, 4)
            in_state(page, "live")
            assert page.evaluate("window.isTheSame")
            # Somebody who comes now sees what was before.
            newcomer = visit(again.address, can_break_off=True)
            at_step(newcomer, 4)
            newcomer.click("#table-panel summary")
            newcomer.wait_for_selector("#table-body tr")
            assert column(newcomer, 1) == [4, 3, 2, 1]

    def test_another_ledger_is_begun_anew(self, tmp_path, endless, visit):
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
        with centre_at(tmp_path / "one", endless) as watch:
            page = visit(watch.address, can_break_off=True)
            for _ in range(9):
                watch.tick()
            at_step(page, 9)
        with centre_at(tmp_path / "two", endless, watch.port) as other:
            other.tick()
            at_step(page, 1)


def column(page, number):
    cells = page.locator(f"#table-body tr > :nth-child({number})").all_text_contents()
    return [float(text.replace("−", "-").replace(",", "")) for text in cells]


@pytest.mark.slow
def test_it_survives_a_centre_that_is_killed(tmp_path, endless, visit):
    """The whole program, with its own clock, killed in the middle of its work and started again."""
    endless.save(tmp_path / "design.dpfuse")
    new_secret(tmp_path / "secret")
    options = ["serve", "--design", "design.dpfuse", "--ledger", "ledger.db", "--secret", "secret", "--interval", "0.2"]
    with command(*options, "--new", "--port", "0", folder=tmp_path) as first:
        address = address_of(first)
        page = visit(address + "/", can_break_off=True)
        in_state(page, "live")
        page.click("#table-panel summary")
        page.evaluate("window.isTheSame = true")
        wait_for(lambda: number_in(page, "step") > 10)
        first.process.kill()
        in_state(page, "lost")
        before = number_in(page, "step")
    with command(*options, "--port", address.rpartition(":")[2], folder=tmp_path) as second:
        assert address_of(second) == address
        in_state(page, "live")
        wait_for(lambda: number_in(page, "step") > before + 10)
        assert page.evaluate("window.isTheSame")
        assert "no noise is drawn twice" in page.text_content("#notice")
        wait_for(lambda: column(page, 1)[0] > before)
        shown = column(page, 1)
    # A machine under load may miss a step, and then nobody ever sees it: what the ledger has is what was there to show.
    kept = [row.step for row in public_rows(tmp_path / "ledger.db", "main", start=int(shown[-1]))]
    assert shown == [step for step in reversed(kept) if step <= shown[0]]


class TestStates:
    def test_nothing_for_a_while_is_stale(self, watch, visit):
        page = visit(watch.address)
        watch.tick()
        in_state(page, "live")
        in_state(page, "stale")
        watch.tick()
        in_state(page, "live")

    def test_a_design_that_came_to_its_end_says_so(self, tmp_path, visit):
        with centre_at(tmp_path, make_design("total", horizon=2)) as watch:
            page = visit(watch.address)
            watch.tick(), watch.tick()
            watch.status = "over"
            in_state(page, "over")
            assert "has made its 2 releases" in page.text_content("#notice")
            page.context.close()  # before the centre is gone, or it would look for it

    def test_a_budget_that_is_spent_says_so(self, tmp_path, visit):
        design = make_design("total", horizon=6)
        spender = Design(departing(design.policy, 12.0), design.guarantee, design.interval_s)
        with centre_at(tmp_path, spender) as watch:
            page = visit(watch.address)
            watch.tick()
            in_state(page, "spent")
            assert "as noise alone" in page.text_content("#notice")
            assert number_in(page, "budget") < 1e-3
            page.context.close()

    def test_a_centre_that_failed_says_so_when_it_is_gone(self, tmp_path, endless, visit):
        with centre_at(tmp_path, endless) as watch:
            page = visit(watch.address, can_break_off=True)
            watch.tick()
            in_state(page, "live")
            watch.status = "failed"
        in_state(page, "failed")


class TestReplay:
    def test_only_a_replay_shows_what_is_nobodys(self, tmp_path, endless, visit):
        private = ["#error", "#reports", "#latency", "#reports-chart", "#latency-chart", "#replay-note"]
        for is_replay in (True, False):
            (folder := tmp_path / str(is_replay)).mkdir()
            with centre_at(folder, endless, replay=is_replay) as watch:
                page = visit(watch.address)
                truth = {"stream": "main", "step": 1, "state": [1.25]}
                code = httpx.post(f"{watch.address}v1/replay/truth", json=truth, trust_env=False).status_code
                assert code == (202 if is_replay else 404)
                watch.tick()
                at_step(page, 1)
                assert [page.is_visible(name) for name in private] == [is_replay] * len(private)
                assert ("It held the truth" in page.text_content("#coverage")) == is_replay
                assert ("truth 1.2" in page.text_content("#estimate-key")) == is_replay
                page.context.close()


class TestForEverybody:
    def test_it_can_be_used_by_keyboard(self, watch, visit):
        page = visit(watch.address)
        last = [watch.tick()[0].row.step for _ in range(3)][-1]
        at_step(page, last)
        reached = []
        for _ in range(11):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", reached
        charts = ["estimate-chart", "release-chart", "loss-chart"]
        assert reached[:8] == ["skip", "stream", "window", "pause", *charts, ""]
        page.focus("#loss-chart")
        page.keyboard.press("ArrowLeft")
        assert page.text_content("#loss-key").endswith(f"step {last - 1}")
        assert page.text_content("#estimate-key").endswith(f"step {last - 1}")
        assert page.get_attribute("#loss-chart", "aria-valuenow") == str(last - 1)
        assert page.get_attribute("#loss-chart", "aria-valuetext").endswith(f"step {last - 1}")
        page.keyboard.press("Escape")
        assert "step" not in page.text_content("#loss-key")
        assert page.get_attribute("#loss-chart", "aria-valuetext").startswith("newest, for one sensor, at most 0")

    def test_landmarks_headings_names_and_live_regions(self, watch, visit):
        page = visit(watch.address)
        at_step(page, watch.tick()[0].row.step)
        assert page.get_attribute("html", "lang") == "en"
        for landmark in ("header", "main", "footer"):
            assert page.locator(f"body > {landmark}").count() == 1
        levels = page.eval_on_selector_all("h1, h2, h3", "found => found.map(one => Number(one.tagName[1]))")
        assert levels[0] == 1 and set(levels[1:]) == {2}
        nameless = page.eval_on_selector_all(
            "select, button, summary, a, img, [role=slider], [role=region], section",
            """found => found.filter(one => {
                const by = one.getAttribute("aria-labelledby");
                const text = by ? document.getElementById(by)?.textContent : one.closest("label")?.textContent
                  || one.textContent;
                return !(text?.trim() || one.getAttribute("alt") === "");
            }).map(one => one.outerHTML)""",
        )
        assert nameless == []
        assert page.locator("[id]").count() == len(
            set(page.eval_on_selector_all("[id]", "found => found.map(one => one.id)"))
        )
        assert page.get_attribute("#summary", "aria-live") == "polite"

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_text_stands_out_in_both_schemes(self, watch, visit, scheme):
        """WCAG AA: 4.5 for text, 3 for lines, of every piece of text against what is behind it."""
        page = visit(watch.address, color_scheme=scheme)
        at_step(page, watch.tick()[0].row.step)
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        ratios = page.evaluate(CONTRASTS)
        assert len(ratios["text"]) > 40
        assert {name: ratio for name, ratio in ratios["text"] if ratio < 4.5} == {}
        assert {name: ratio for name, ratio in ratios["lines"] if ratio < 3} == {}
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == {"light": "rgb(250, 249, 246)", "dark": "rgb(19, 20, 22)"}[scheme]

    def test_charts_follow_the_scheme(self, watch, visit):
        page = visit(watch.address, color_scheme="light")
        at_step(page, watch.tick()[0].row.step)
        pixels = "document.querySelector('#estimate-chart canvas').toDataURL()"
        before = page.evaluate(pixels)
        page.emulate_media(color_scheme="dark")
        wait_for(lambda: page.evaluate(pixels) != before)

    def test_a_phone_needs_no_sideways_scrolling(self, watch, visit):
        page = visit(watch.address, viewport=PHONE)
        at_step(page, watch.tick()[0].row.step)
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]

    # Half a second is room for a browser that is held up; without the wish a picture follows each of these ticks.
    @pytest.mark.parametrize("motion, shortest_ms", [("reduce", 500), ("no-preference", 0)])
    def test_who_wants_less_motion_gets_a_picture_a_second(self, watch, visit, motion, shortest_ms):
        page = visit(watch.address, reduced_motion=motion)
        at_step(page, watch.tick()[0].row.step)
        page.evaluate("""() => {
            window.drawn = [];
            new MutationObserver(() => window.drawn.push(performance.now()))
              .observe(document.body, { attributeFilter: ["data-step"] });
        }""")
        for _ in range(8):
            last = watch.tick()[0].row.step
            page.wait_for_timeout(50)
        at_step(page, last)
        at_step(page, watch.tick()[0].row.step)
        drawn = page.evaluate("window.drawn")
        gaps = [after - before for before, after in itertools.pairwise(drawn)]
        assert gaps and min(gaps) >= shortest_ms


def test_a_request_to_elsewhere_would_be_refused_and_seen(watch, browser):
    """Negative control for the first test of the page."""
    context = browser.new_context()
    page = context.new_page()
    refused = []
    page.on("console", lambda message: refused.append(message.text))
    page.goto(watch.address)
    answer = page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'it went', () => 'refused')")
    assert answer == "refused"
    wait_for(lambda: page.title() and any("Content Security Policy" in text for text in refused))
    context.close()


# The contrast of every visible piece of text with its background, and of what charts are drawn with.
CONTRASTS = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const contrast = (a, b) => {
    const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const colour = parse(getComputedStyle(one).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const text = [...document.querySelectorAll("body *")]
    .filter((one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()))
    .filter((one) => one.checkVisibility() && !one.matches("option, script, noscript *"))
    .map((one) => [one.id || `${one.tagName} ${one.textContent.slice(0, 30)}`,
                   contrast(parse(getComputedStyle(one).color), behind(one))]);
  const probe = document.body.appendChild(document.createElement("i"));
  const named = (name) => { probe.style.color = `var(--${name})`; return parse(getComputedStyle(probe).color); };
  const lines = ["estimate", "truth", "first", "second", "third", "fourth", "loss", "live", "wait", "bad", "focus"]
    .map((name) => [name, contrast(named(name), named("card"))]);
  return { text, lines };
}"""

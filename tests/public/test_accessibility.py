"""The page for everybody: keyboard, screen readers, contrast, phones and reduced motion, in a real browser."""

from __future__ import annotations

import itertools

import pytest

from support.page import at_step
from support.wire import wait_for

pytestmark = pytest.mark.slow
PHONE = {"width": 320, "height": 640}


def test_the_page_can_be_used_with_the_keyboard(watch, visit):
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
    assert f"step {last - 1}, " in page.text_content("#loss-key")  # and the time of day
    assert f"step {last - 1}, " in page.text_content("#estimate-key")
    assert page.get_attribute("#loss-chart", "aria-valuenow") == str(last - 1)
    assert f"step {last - 1}, " in page.get_attribute("#loss-chart", "aria-valuetext")
    page.keyboard.press("Escape")
    assert "step" not in page.text_content("#loss-key")
    assert page.get_attribute("#loss-chart", "aria-valuetext").startswith("newest, for one sensor, at most 0")


def test_screen_readers_find_landmarks_headings_names_and_live_regions(watch, visit):
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
def test_text_and_lines_have_enough_contrast_in_both_colour_schemes(watch, visit, scheme):
    """WCAG AA asks for 4.5 for text and 3 for lines, each against its background."""
    page = visit(watch.address, color_scheme=scheme)
    at_step(page, watch.tick()[0].row.step)
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    ratios = page.evaluate(CONTRASTS)
    assert len(ratios["text"]) > 40
    assert {name: ratio for name, ratio in ratios["text"] if ratio < 4.5} == {}
    assert {name: ratio for name, ratio in ratios["lines"] if ratio < 3} == {}
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(250, 249, 246)", "dark": "rgb(19, 20, 22)"}[scheme]


def test_charts_follow_the_colour_scheme(watch, visit):
    page = visit(watch.address, color_scheme="light")
    at_step(page, watch.tick()[0].row.step)
    pixels = "document.querySelector('#estimate-chart canvas').toDataURL()"
    before = page.evaluate(pixels)
    page.emulate_media(color_scheme="dark")
    wait_for(lambda: page.evaluate(pixels) != before)


def test_a_phone_needs_no_horizontal_scrolling(watch, visit):
    page = visit(watch.address, viewport=PHONE)
    at_step(page, watch.tick()[0].row.step)
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]


# Half a second, so that a slow browser does not fail the test. Without reduced motion, each step is drawn.
@pytest.mark.parametrize("motion, shortest_ms", [("reduce", 500), ("no-preference", 0)])
def test_with_reduced_motion_the_page_draws_once_a_second(watch, visit, motion, shortest_ms):
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


# The contrast of every visible text with its background, and of the colours of the charts.
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

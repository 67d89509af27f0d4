"""A browser, and a centre that its tests share."""

from __future__ import annotations

import pytest

from support.page import NOTE_STATUSES, centre_at
from support.parts import needs
from support.wire import PATIENCE_S, endless_design

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser():
    """One Chromium for the tests of a module. While it is open, no other test of this process may run an event loop."""
    program = needs("chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=FLAGS, timeout=1000 * PATIENCE_S)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser):
    """Opens pages; the test fails at its end if there was an error or a request to another server."""
    contexts, problems = [], []

    def open_page(address, *, can_break_off=False, viewport=None, **options):
        context = browser.new_context(viewport=viewport or {"width": 1280, "height": 900}, **options)
        context.set_default_timeout(1000 * PATIENCE_S)
        context.add_init_script(NOTE_STATUSES)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("request", lambda request: request.url.startswith(address) or problems.append(f"asked {request.url}"))

        def check(message):
            is_break = can_break_off and "net::ERR_" in message.text  # the browser's text for a centre that is gone
            if message.type in ("error", "warning") and not is_break:
                problems.append(f"{message.type}: {message.text}")

        page.on("console", check)
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture(scope="module")
def watch(tmp_path_factory):
    """A centre with two streams that the tests of a module share; each test makes some steps."""
    with centre_at(tmp_path_factory.mktemp("shared"), endless_design(), streams=("north", "south")) as shared:
        shared.tick()
        yield shared

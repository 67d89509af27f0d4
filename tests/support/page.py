"""A centre behind a server for the browser, and what a test reads from the page."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager

import uvicorn

from dpfuse.ledger import Ledger
from dpfuse.public.replay_notes import ReplayNotes
from dpfuse.wire.intake import Intake
from dpfuse.wire.keys import Keys
from dpfuse.wire.serve import make_hub
from support.wire import PATIENCE_S, SECRET, Watch, both, make_centre, make_doors, signer_of, wait_for

LABELS = ["Density [veh/km]"]


# Notes every status of the page.
NOTE_STATUSES = """
  window.statuses = [];
  new MutationObserver(() => window.statuses.push(document.body.dataset.status))
    .observe(document, { subtree: true, attributeFilter: ["data-status"] });
"""

TAKE_STATUS = "status => window.statuses.splice(0, window.statuses.indexOf(status) + 1).length > 0"


@contextmanager
def centre_at(folder, design, port=0, streams=("main",), replay=False):
    """A centre with the ledger in that folder, new or not, behind a server; closes all connections at the end."""
    path = folder / "ledger.db"
    ledger = Ledger.open(path, design) if path.exists() else Ledger.create(path, design, streams)
    centre = make_centre(design, ledger)
    hub = make_hub(ledger, centre, signer := signer_of(ledger))
    watch = Watch(centre, hub)
    intake = Intake(centre, Keys.from_secret(SECRET), ReplayNotes() if replay else None)
    _, doors = make_doors(centre, watch, hub, intake, signer, labels=LABELS)
    listener = socket.create_server(("127.0.0.1", port))
    server = uvicorn.Server(
        uvicorn.Config(both(*doors), log_level="error", lifespan="off", timeout_graceful_shutdown=1)
    )
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


def at_step(page, step):
    page.wait_for_selector(f"body[data-step='{step}']")


def in_status(page, status):
    """Waits until the page has had this status, after those that were waited for before; it may be over already.

    A page is live for two seconds after a release, and a busy machine may look too late.
    """
    wait_for(lambda: page.evaluate(TAKE_STATUS, status))


def number_in(page, name):
    return float(page.text_content(f"#{name}").replace("−", "-").replace(",", "").replace("–", "nan"))


def column(page, number):
    cells = page.locator(f"#table-body tr > :nth-child({number})").all_text_contents()
    return [float(text.replace("−", "-").replace(",", "")) for text in cells]

// The page: follows the feed, keeps the last minutes, and draws them at most once a frame.

import { makePanels } from "./panels.js";
import { follow } from "./follow.js";
import { History } from "./history.js";
import { makeReadout } from "./readout.js";
import { duration } from "./text.js";

const settings = JSON.parse(document.getElementById("settings").textContent);
const byId = (id) => document.getElementById(id);

const STALE_AFTER_MS = Math.max(2000, 3000 * settings.interval_s);
const NOTICE_MS = 20_000;
const SUMMARY_MS = 20_000;
const MIN_FRAME_MS = matchMedia("(prefers-reduced-motion: reduce)").matches ? 1000 : 0;

const history = new History(settings.num_kept);
const view = { coordinate: 0, windowSteps: settings.num_kept, isPaused: false, restarts: [] };
const link = { isOpen: false, wasOpen: false, centre: null, arrivedAt: 0 };
const panels = makePanels(settings, view, history);
const readout = makeReadout(settings, view, history);
let following = null;
let isDue = false;
let drawnAt = 0;
let noticeTimer = 0;

// The status of the page and its text.

const STATUS_TEXT = {
  connecting: () => "Connecting",
  lost: () => "Centre does not answer, trying again",
  failed: () => "Centre stopped by an error",
  stopped: () => "Centre stopped",
  over: () => "Finished",
  spent: () => "Budget spent",
  stale: () => "No release for a while",
  live: () => `Live, every ${duration(settings.interval_s)}`,
};

const count = (number) => number?.toLocaleString("en");

// Notices that stay on the page.
const END_NOTICES = {
  over: `The design has made its ${count(settings.horizon)} releases. It never starts again on the same sensors.`,
  spent: "The budget is spent. Releases continue at every step, as noise alone.",
};

function currentStatus() {
  if (link.centre?.status === "failed") return "failed";
  if (!link.isOpen) return link.wasOpen ? "lost" : "connecting";
  const status = link.centre?.status ?? "running";
  if (status !== "running") return status;
  if (history.last && isSpent(history.last)) return "spent";
  if (!history.last && !link.arrivedAt) return "connecting";
  return performance.now() - link.arrivedAt > STALE_AFTER_MS ? "stale" : "live";
}

function isSpent(point) {
  return point.loss_left !== undefined && point.loss_left <= settings.spent_below;
}

function showStatus() {
  const status = currentStatus();
  const text = STATUS_TEXT[status]();
  document.body.dataset.status = status;
  if (byId("status-text").textContent !== text) byId("status-text").textContent = text;
  if (END_NOTICES[status]) notice(END_NOTICES[status], false);
}

function notice(text, disappears = true) {
  if (byId("notice").textContent !== text) byId("notice").textContent = text;
  byId("notice").hidden = false;
  clearTimeout(noticeTimer);
  if (disappears) noticeTimer = setTimeout(() => { byId("notice").hidden = true; }, NOTICE_MS);
}

// What the feed sends.

function onStatus(status) {
  const before = link.centre;
  link.centre = status;
  readout.drawHealth(status.parts);
  if (status.design !== settings.design) {
    location.reload(); // another design has another guarantee and other axes
    return;
  }
  if (history.last && status.step < history.last.step && status.first_step <= 1) {
    restart(); // a new ledger, from its first step
    return;
  }
  if (before && before.first_step !== status.first_step) {
    view.restarts.push(status.first_step);
    notice(
      `The centre restarted and continues at step ${count(status.first_step)}. Earlier releases stay as they were; ` +
        "no noise is drawn twice.",
    );
  }
  showStatus();
}

function onPoint(point) {
  link.arrivedAt = performance.now();
  if (!history.add(point)) return;
  readout.take(point);
  requestFrame();
}

function requestFrame() {
  if (isDue || view.isPaused) return;
  isDue = true;
  const rest = MIN_FRAME_MS - (performance.now() - drawnAt);
  if (rest > 0) setTimeout(() => requestAnimationFrame(draw), rest);
  else requestAnimationFrame(draw);
}

function draw() {
  isDue = false;
  panels.draw();
  readout.draw();
  showStatus();
  document.body.dataset.step = history.last?.step ?? "";
  if (history.last && !performance.getEntriesByName("up").length) performance.mark("up");
  drawnAt = performance.now();
}

function restart() {
  following?.close();
  history.clear();
  readout.take();
  view.restarts = [];
  link.centre = null;
  link.arrivedAt = 0;
  link.isOpen = link.wasOpen = false;
  panels.reset();
  following = follow(byId("stream").value, {
    nextStep: () => (history.last ? history.last.step + 1 : 1),
    onOpen: () => { link.isOpen = link.wasOpen = true; showStatus(); },
    onLost: () => { link.isOpen = false; showStatus(); },
    onPoint,
    onStatus,
  });
  showStatus();
  draw();
}

// The controls.

function fill(select, entries) {
  select.replaceChildren(...entries.map(([value, text]) => new Option(text, value)));
}

function setUpChoices() {
  fill(byId("stream"), settings.streams.map((name) => [name, name]));
  fill(byId("coordinate"), settings.labels.map((label, index) => [index, label.name]));
  byId("stream-choice").hidden = settings.streams.length < 2;
  byId("state-choice").hidden = settings.labels.length < 2;
  const kept = Math.round(10 * settings.num_kept * settings.interval_s) / 10;
  const windows = [20, 60, 120, 300, 600, 1800].filter((seconds) => seconds < kept).concat(kept);
  fill(byId("window"), windows.map((seconds) => [seconds, duration(seconds)]));
  byId("window").value = windows.find((seconds) => seconds >= 60) ?? kept;
  const wanted = settings.streams.find((name) => `#${encodeURIComponent(name)}` === location.hash);
  if (wanted) byId("stream").value = wanted;

  byId("stream").addEventListener("change", () => {
    window.history.replaceState(null, "", `#${encodeURIComponent(byId("stream").value)}`);
    restart();
  });
  byId("coordinate").addEventListener("change", () => {
    view.coordinate = Number(byId("coordinate").value);
    panels.reset();
    draw();
  });
  byId("window").addEventListener("change", () => { setWindow(); draw(); });
  byId("pause").addEventListener("click", () => {
    view.isPaused = !view.isPaused;
    byId("pause").textContent = view.isPaused ? "Resume" : "Pause";
    document.body.classList.toggle("paused", view.isPaused);
    requestFrame();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => panels.repaint());
  setWindow();
}

function setWindow() {
  view.windowSteps = Math.round(Number(byId("window").value) / settings.interval_s);
}

for (const element of document.querySelectorAll(".replay")) element.hidden = !settings.is_replay;
setUpChoices();
restart();
setInterval(showStatus, 500);
setInterval(() => {
  if (currentStatus() === "live" && !view.isPaused) byId("summary").textContent = readout.sentence();
}, SUMMARY_MS);

// The page: what was published is followed, kept for some minutes, and drawn at most once a frame.

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
const CALM_MS = matchMedia("(prefers-reduced-motion: reduce)").matches ? 1000 : 0;

const history = new History(settings.num_kept);
const view = { coordinate: 0, windowSteps: settings.num_kept, isPaused: false, restarts: [] };
const link = { isOpen: false, wasOpen: false, status: null, arrivedAt: 0 };
const panels = makePanels(settings, view, history);
const readout = makeReadout(settings, view, history);
let following = null;
let isDue = false;
let drawnAt = 0;
let noticeTimer = 0;

// What state the page is in, and what it says about it.

const SAYS = {
  connecting: () => "Connecting",
  lost: () => "Centre does not answer, trying again",
  failed: () => "Centre stopped: its ledger refused",
  stopped: () => "Centre stopped",
  over: () => "Finished",
  spent: () => "Budget spent",
  stale: () => "No release for a while",
  live: () => `Live, every ${duration(settings.interval_s)}`,
};

const count = (number) => number?.toLocaleString("en");

// What stays on the page once it is so.
const ENDS = {
  over: `The design has made its ${count(settings.horizon)} releases. It never starts again on the same sensors.`,
  spent: "The budget is spent. Releases go on by the clock, as noise alone.",
};

function currentState() {
  if (link.status?.state === "failed") return "failed";
  if (!link.isOpen) return link.wasOpen ? "lost" : "connecting";
  const state = link.status?.state ?? "running";
  if (state !== "running") return state;
  if (history.last && isSpent(history.last)) return "spent";
  if (!history.last && !link.arrivedAt) return "connecting";
  return performance.now() - link.arrivedAt > STALE_AFTER_MS ? "stale" : "live";
}

function isSpent(point) {
  return point.budget_left !== undefined && point.budget_left <= settings.spent_below;
}

function showState() {
  const state = currentState();
  const text = SAYS[state]();
  document.body.dataset.state = state;
  if (byId("status-text").textContent !== text) byId("status-text").textContent = text;
  if (ENDS[state]) notice(ENDS[state], false);
}

function notice(text, isPassing = true) {
  if (byId("notice").textContent !== text) byId("notice").textContent = text;
  byId("notice").hidden = false;
  clearTimeout(noticeTimer);
  if (isPassing) noticeTimer = setTimeout(() => { byId("notice").hidden = true; }, NOTICE_MS);
}

// What comes in.

function onStatus(status) {
  const before = link.status;
  link.status = status;
  if (status.design !== settings.design) {
    location.reload(); // another design: another promise, other axes
    return;
  }
  if (history.last && status.step < history.last.step && status.first_step <= 1) {
    restart(); // another ledger, from its beginning
    return;
  }
  if (before && before.first_step !== status.first_step) {
    view.restarts.push(status.first_step);
    notice(
      `The centre restarted and goes on at step ${count(status.first_step)}. What was released before stays as ` +
        "it was; nothing is drawn twice.",
    );
  }
  showState();
}

function onPoint(point) {
  link.arrivedAt = performance.now();
  if (history.add(point)) askForFrame();
}

function askForFrame() {
  if (isDue || view.isPaused) return;
  isDue = true;
  const rest = CALM_MS - (performance.now() - drawnAt);
  if (rest > 0) setTimeout(() => requestAnimationFrame(draw), rest);
  else requestAnimationFrame(draw);
}

function draw() {
  isDue = false;
  panels.draw();
  readout.draw();
  showState();
  document.body.dataset.step = history.last?.step ?? "";
  if (history.last && !performance.getEntriesByName("up").length) performance.mark("up");
  drawnAt = performance.now();
}

function restart() {
  following?.close();
  history.clear();
  view.restarts = [];
  link.status = null;
  link.arrivedAt = 0;
  link.isOpen = link.wasOpen = false;
  panels.reset();
  following = follow(byId("stream").value, {
    nextStep: () => (history.last ? history.last.step + 1 : 1),
    onOpen: () => { link.isOpen = link.wasOpen = true; showState(); },
    onLost: () => { link.isOpen = false; showState(); },
    onPoint,
    onStatus,
  });
  showState();
  draw();
}

// What the reader chooses.

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
    byId("pause").textContent = view.isPaused ? "Go on" : "Pause";
    document.body.classList.toggle("paused", view.isPaused);
    askForFrame();
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
setInterval(showState, 500);
setInterval(() => {
  if (currentState() === "live" && !view.isPaused) byId("summary").textContent = readout.sentence();
}, SUMMARY_MS);

// The charts of the page. The key above each shows the values at the cursor, or the newest values.

import { makeChart, markTimes } from "./charts.js";
import { clock, digitsFor, fixed, significant, SPREAD, timeOfDay } from "./text.js";

const HUES = ["first", "second", "third", "fourth"];

export function makePanels(settings, view, history) {
  const { interval_s: interval, is_replay: isReplay, grid } = settings;
  const isTotal = settings.accounting === "total";
  let points = [];
  let pinnedStep = null;
  const value = (pick) => points.map((point) => (point.isGap ? null : pick(point)));
  const at = (values) => values?.[view.coordinate] ?? null;
  const coordinates = Array.from({ length: settings.dimension }, (_, index) => index);
  const stepped = uPlot.paths.stepped({ align: 1 });

  // Each panel: its series, its data, and its key for one point.
  const kinds = {
    estimate: {
      series: [
        { color: null, width: 0 },
        { color: null, width: 0 },
        ...(isReplay ? [{ color: "truth", width: 1.25 }] : []),
        { color: "estimate", width: 2 },
      ],
      bands: [{ series: [2, 1], color: "band" }],
      data: () => [
        value((point) => at(point.mean) - SPREAD * at(point.std)),
        value((point) => at(point.mean) + SPREAD * at(point.std)),
        ...(isReplay ? [value((point) => at(point.truth))] : []),
        value((point) => at(point.mean)),
      ],
      key: (point) => {
        const digits = digitsFor(at(point.std) / 3);
        return [
          ["c0", "estimate", fixed(at(point.mean), digits)],
          ["band", "95% band", `± ${fixed(SPREAD * at(point.std), digits)}`],
          ...(isReplay ? [["c1", "truth", fixed(at(point.truth), digits)]] : []),
        ];
      },
    },
    release: {
      series: coordinates.map((index) => ({ color: HUES[index % HUES.length], width: 1 })),
      range: { isSymmetric: true },
      data: () => coordinates.map((index) => value((point) => point.release[index] / grid)),
      key: (point) =>
        point.release.slice(0, 4).map((entry, index) => [
          `r${index}`, `Z${subscript(index + 1)}`, fixed(entry / grid, 2),
        ]),
    },
    loss: {
      series: [{ color: "loss", fillColor: "loss-fill", width: 1.25, paths: stepped }],
      range: { from: 0 },
      data: () => [value((point) => point.loss)],
      key: (point) => [["l", isTotal ? "charged to the stream" : "for one sensor, at most", significant(point.loss)]],
    },
    budget: {
      series: [{ color: "loss", fillColor: "loss-fill", width: 1.25 }],
      range: { from: 0, to: settings.budget },
      data: () => [value((point) => point.loss_left)],
      key: (point) => [["l", "of the stream", significant(point.loss_left)]],
    },
    reports: {
      series: [{ color: "second", width: 1.25, paths: stepped }],
      range: { from: 0 },
      data: () => [value((point) => point.reports)],
      key: (point) => [["r1", "all sensors", fixed(point.reports, 0)]],
    },
    latency: {
      series: [{ color: "fourth", width: 1.25, paths: stepped }],
      range: { from: 0 },
      data: () => [value((point) => point.latency_ms)],
      key: (point) => [["r3", "from the end of the step", significant(point.latency_ms)]],
    },
  };

  const isShown = { budget: isTotal, reports: isReplay, latency: isReplay };
  const shown = Object.entries(kinds).filter(([name]) => isShown[name] ?? true);
  document.getElementById("small-panels").dataset.count = shown.length - 1;
  const panels = {};
  const every = (action) => Object.values(panels).forEach(action);
  for (const [name, kind] of shown) {
    document.getElementById(`${name}-title`).parentElement.hidden = false;
    const element = document.getElementById(`${name}-chart`);
    makeSlider(element, name);
    const panel = makeChart(element, { ...kind, onCursor: (index) => showKey(name, index) });
    markTimes(panel.chart, () => view.restarts.map((step) => (step - 0.5) * interval));
    element.addEventListener("keydown", (event) => moveCursor(event, name));
    element.addEventListener("focus", () => describeValue(name));
    element.addEventListener("blur", unpin);
    panels[name] = panel;
  }

  function showKey(name, index) {
    const chosen = index === null ? null : points[index];
    const point = chosen && !chosen.isGap ? chosen : history.newest(1)[0];
    if (!point) return;
    const entries = kinds[name].key(point).map(([swatch, label, text]) => keyEntry(swatch, label, text));
    if (chosen) {
      const time = clock(chosen.step * interval, interval < 1);
      const day = chosen.at ? `, ${timeOfDay(chosen.at)}` : "";
      entries.push(keyEntry(null, "at", `${time}, step ${chosen.step.toLocaleString("en")}${day}`));
    }
    document.getElementById(`${name}-key`).replaceChildren(...entries);
  }

  /** Sets what a screen reader reads of a chart: on focus and cursor keys, not at every release. */
  function describeValue(name) {
    const element = document.getElementById(`${name}-chart`);
    const last = points.at(-1)?.step ?? 0;
    const key = [...document.getElementById(`${name}-key`).children].map((entry) => entry.textContent.trim());
    element.setAttribute("aria-valuemin", points[0]?.step ?? 0);
    element.setAttribute("aria-valuemax", last);
    element.setAttribute("aria-valuenow", pinnedStep ?? last);
    element.setAttribute("aria-valuetext", [pinnedStep === null ? "newest" : "", ...key].filter(Boolean).join(", "));
  }

  function moveCursor(event, name) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") {
      unpin();
      describeValue(name);
    }
    if (!by || !points.length) return;
    event.preventDefault();
    const first = points[0].step;
    const last = points.at(-1).step;
    const from = pinnedStep ?? last;
    pinnedStep = Math.min(Math.max(from + by * (event.shiftKey ? 10 : 1), first), last);
    every((panel) => panel.point(pinnedStep - first));
    describeValue(name);
  }

  function unpin() {
    if (pinnedStep === null) return;
    pinnedStep = null;
    every((panel) => panel.point(null));
  }

  function draw() {
    const last = history.last?.step ?? 0;
    const isWhole = settings.horizon !== null && settings.horizon <= view.windowSteps;
    const start = isWhole ? 0 : Math.max(0, last - view.windowSteps);
    const end = isWhole ? settings.horizon : start + view.windowSteps;
    points = history.since(Math.max(start, 1));
    const times = points.map((point) => point.step * interval);
    for (const [name, kind] of shown) {
      const panel = panels[name];
      panel.draw([times, ...kind.data()], start * interval, end * interval);
      showKey(name, panel.chart.cursor.idx ?? null);
    }
    if (pinnedStep !== null && points.length) {
      pinnedStep = Math.max(pinnedStep, points[0].step);
      every((panel) => panel.point(pinnedStep - points[0].step));
    }
  }

  return { draw, reset: () => every((panel) => panel.resetRange()), repaint: () => every((panel) => panel.repaint()) };
}

/** Makes the chart a slider over the steps, for the keyboard and screen readers. */
function makeSlider(element, name) {
  element.tabIndex = 0;
  const attributes = {
    role: "slider",
    "aria-labelledby": `${name}-title`,
    "aria-describedby": "chart-help",
    "aria-valuemin": 0,
    "aria-valuemax": 0,
    "aria-valuenow": 0,
  };
  for (const [attribute, text] of Object.entries(attributes)) element.setAttribute(attribute, text);
}

function keyEntry(swatch, label, text) {
  const entry = document.createElement("span");
  if (swatch) entry.append(Object.assign(document.createElement("i"), { className: swatch }));
  entry.append(`${label} `);
  if (text) entry.append(Object.assign(document.createElement("b"), { textContent: text }));
  return entry;
}

function subscript(number) {
  return [...String(number)].map((digit) => String.fromCodePoint(0x2080 + Number(digit))).join("");
}

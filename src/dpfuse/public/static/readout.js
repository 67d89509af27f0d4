// The numbers of the page: the estimate, the facts beside it, the table, and a sentence for screen readers.

import { clock, digitsFor, duration, fixed, significant, SPREAD, timeOfDay } from "./text.js";

const TABLE_ROWS = 12;
const RECENT_STEPS = 300;
const TABLE_MS = 1000;
const WIDE = 0.5;

export function makeReadout(settings, view, history) {
  const { is_replay: isReplay, interval_s: interval, delay_s: delay, horizon, budget, grid } = settings;
  const isTotal = settings.accounting === "total";
  const byId = (id) => document.getElementById(id);
  const show = (id, text) => {
    const element = byId(id);
    if (element.textContent !== text) element.textContent = text;
  };
  const at = (values) => values?.[view.coordinate] ?? null;
  let tableDueAt = 0;
  let hasSettled = false;

  byId("budget-fact").hidden = !isTotal;
  byId("inputs").hidden = !settings.inputs.length;
  byId("table-panel").addEventListener("toggle", () => {
    tableDueAt = 0;
    draw();
  });
  show("loss-name", isTotal ? "Loss of this step" : "Loss, at most");
  show("loss-note", isTotal ? "Rényi loss" : `per sensor, of ${budget}`);

  function draw() {
    const label = settings.labels[view.coordinate];
    show("quantity", label.name);
    show("unit", label.unit);
    show("estimate-unit", label.unit);
    document.title = `${label.name} · dpfuse live`;
    const point = history.newest(1)[0];
    if (!point) {
      for (const id of ["mean", "spread", "step", "loss", "budget", "error", "reports", "latency"]) show(id, "–");
      show("band", "Waiting for the first release.");
      show("inputs", "");
      byId("table-body").replaceChildren();
      return;
    }
    const half = SPREAD * at(point.std);
    const digits = digitsFor(half);
    show("mean", fixed(at(point.mean), digits));
    show("spread", fixed(half, digits));
    const word = caution(point);
    const bounds = `${fixed(at(point.mean) - half, digits)} to ${fixed(at(point.mean) + half, digits)}`;
    show("band", `${word ? `${word} · ` : ""}95% band: ${bounds}`);
    show("inputs", inputsText(point));
    show("step", point.step.toLocaleString("en"));
    const time = clock(point.step * interval);
    const released = point.at ? `, released at ${timeOfDay(point.at)}` : "";
    show("step-note", (horizon === null ? `after ${time}` : `of ${horizon.toLocaleString("en")}`) + released);
    show("loss", significant(point.loss));
    if (isTotal) {
      show("budget", significant(point.loss_left));
      show("budget-note", `of ${budget}, ${fixed((100 * point.loss_left) / budget, 0)}%`);
      byId("budget-bar").style.transform = `scaleX(${Math.max(point.loss_left / budget, 0)})`;
    }
    if (isReplay) drawReplay(point, digits);
    if (byId("table-panel").open && performance.now() >= tableDueAt) drawTable(digits);
  }

  /** Whether the band of a coordinate is wider than half the prior's, as for `RemoteEstimate.status`: the estimate rests on little. */
  function isWide(point) {
    return point.std.some((std, index) => std > WIDE * (settings.prior_std[index] ?? Infinity));
  }

  /** Takes note of every point in turn, also of those that are not drawn; without one, of another stream that begins. */
  function take(point) {
    hasSettled = point !== undefined && (hasSettled || !isWide(point));
  }

  function caution(point) {
    if (!isWide(point)) return "";
    return hasSettled ? "No news" : "Warming up";
  }

  /** The public inputs that the estimate was made with; how old they are, unless they are new. */
  function inputsText(point) {
    const texts = settings.inputs.map(({ name, unit }, index) => {
      const value = point.inputs?.[index] ?? null;
      const age = point.input_ages?.[index] ?? 0;
      if (value === null) return `${name} –`;
      return `${name} ${significant(value)}${unit ? ` ${unit}` : ""}${age ? ` (${duration(age * interval)} old)` : ""}`;
    });
    return `Public inputs: ${texts.join(", ")}`;
  }

  function drawReplay(point, digits) {
    const recent = history.newest(RECENT_STEPS).filter((one) => one.error);
    const held = recent.filter((one) => Math.abs(at(one.error)) <= SPREAD * at(one.std)).length;
    const rms = Math.sqrt(recent.reduce((sum, one) => sum + at(one.error) ** 2, 0) / recent.length);
    const time = clock(recent.length * interval);
    const share = fixed((100 * held) / recent.length, 0);
    show("coverage", recent.length ? `The true value was inside the band in ${share}% of the last ${time}` : "");
    show("error", fixed(at(point.error), digits));
    show("error-note", recent.length ? `rms ${fixed(rms, digits)}, ${time}` : "");
    show("reports", fixed(point.reports, 0));
    show("latency", point.latency_ms === null ? "–" : `${significant(point.latency_ms)} ms`);
    show("latency-note", `of ${fixed(1000 * delay, 0)} ms`);
  }

  function drawTable(digits) {
    tableDueAt = performance.now() + TABLE_MS;
    const replayed = [
      ["Truth", (one) => fixed(at(one.truth), digits)],
      ["Error", (one) => fixed(at(one.error), digits)],
      ["Reports", (one) => fixed(one.reports, 0)],
      ["Tick, ms", (one) => significant(one.latency_ms)],
    ];
    const columns = [
      ["Step", (one) => one.step.toLocaleString("en")],
      ["Time", (one) => (one.at ? timeOfDay(one.at) : "–")],
      ["Estimate", (one) => fixed(at(one.mean), digits)],
      ["± (95%)", (one) => fixed(SPREAD * at(one.std), digits)],
      ["Release", (one) => one.release.map((entry) => fixed(entry / grid, 2)).join(", ")],
      ["Weight", (one) => significant(one.fusion_weight / grid)],
      ["Loss", (one) => significant(one.loss)],
      ...(isTotal ? [["Budget left", (one) => significant(one.loss_left)]] : []),
      ...(isReplay ? replayed : []),
    ];
    const cell = (kind, text, scope) => {
      const element = Object.assign(document.createElement(kind), { textContent: text });
      if (scope) element.scope = scope;
      return element;
    };
    byId("table-head").replaceChildren(...columns.map(([title]) => cell("th", title, "col")));
    byId("table-body").replaceChildren(...history.newest(TABLE_ROWS).map((one) => {
      const row = document.createElement("tr");
      row.append(...columns.map(([, text], index) => (index ? cell("td", text(one)) : cell("th", text(one), "row"))));
      return row;
    }));
  }

  /** Which parts of the centre answer: ledger, bank, broker. */
  function drawHealth(parts) {
    const has = Object.entries({ ledger: parts?.ledger, bank: parts?.bank, broker: parts?.broker })
      .filter(([, isUp]) => isUp === true || isUp === false);
    const away = has.filter(([, isUp]) => !isUp).map(([name]) => name);
    show("health", has.length ? (away.length ? `${away.join(", ")} away` : "ok") : "–");
    show("health-note", has.map(([name]) => name).join(", "));
  }

  /** The sentence that a screen reader reads every 20 seconds. */
  function sentence() {
    const point = history.newest(1)[0];
    if (!point) return "";
    const label = settings.labels[view.coordinate];
    const digits = digitsFor(SPREAD * at(point.std));
    const left = isTotal ? ` ${fixed((100 * point.loss_left) / budget, 0)} percent of the budget left.` : "";
    const [mean, spread] = [fixed(at(point.mean), digits), fixed(SPREAD * at(point.std), digits)];
    return `Step ${point.step}: ${label.name} ${mean} plus or minus ${spread} ${label.unit}.${left}`;
  }

  return { draw, drawHealth, sentence, take };
}

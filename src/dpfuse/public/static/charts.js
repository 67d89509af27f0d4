// Charts with one x axis, linked cursors, and a y range that changes only when it must.

import { clock } from "./text.js";

const TIME_STEPS = [0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600];

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** A y range that changes only when the data leave it or fill less than half of it. */
function steadyRange({ from = null, to = null, isSymmetric = false }) {
  if (to !== null) {
    const whole = () => [from, to];
    whole.reset = () => {};
    return whole;
  }
  let low = null;
  let high = null;
  const range = (_, min, max) => {
    if (min === null || max === null) return [low ?? from ?? 0, high ?? 1];
    if (isSymmetric) [min, max] = [-Math.max(-min, max), Math.max(-min, max)];
    const size = max - (from ?? min);
    if (low === null || min < low || max > high || size < 0.45 * (high - low)) {
      const margin = 0.12 * size || 0.1 * Math.abs(max) || 1e-6;
      low = from ?? min - margin;
      high = max + margin;
    }
    return [low, high];
  };
  range.reset = () => { low = high = null; };
  return range;
}

const timesAt = (_, ticks, __, ___, increment) => ticks.map((seconds) => clock(seconds, increment < 1));

/**
 * Makes a chart in an element.
 *
 * `series` and `bands` are uPlot's, but `color` and `fillColor` name variables of the style sheet.
 * `onCursor` gets the index under the cursor, or null. `range` has the options of `steadyRange`.
 */
export function makeChart(element, { series, bands = [], range = {}, onCursor }) {
  const yRange = steadyRange(range);
  const paint = (name) => () => colour(name);
  const axis = { stroke: paint("muted"), font: "12px system-ui, sans-serif", ticks: { show: false } };
  const grid = { stroke: paint("grid"), width: 1 };
  const options = {
    width: element.clientWidth,
    height: element.clientHeight,
    legend: { show: false },
    padding: [8, 18, 0, 0],
    scales: { x: { time: false }, y: { range: yRange } },
    axes: [
      { ...axis, grid: { show: false }, size: 24, space: 70, incrs: TIME_STEPS, values: timesAt },
      { ...axis, grid, size: 52, space: element.clientHeight > 200 ? 36 : 22, gap: 6 },
    ],
    series: [{}, ...series.map(({ color, fillColor, ...one }) => ({
      width: 1.75,
      points: { show: false },
      ...one,
      stroke: color ? paint(color) : undefined,
      fill: fillColor ? paint(fillColor) : undefined,
    }))],
    bands: bands.map((band) => ({ series: band.series, fill: paint(band.color) })),
    cursor: {
      y: false,
      drag: { x: false, y: false, setScale: false },
      points: { size: 7 },
      sync: { key: "steps", setSeries: false },
    },
    hooks: { setCursor: [(chart) => onCursor(chart.cursor.idx ?? null)] },
  };
  const chart = new uPlot(options, [[], ...series.map(() => [])], element);
  new ResizeObserver(() => {
    if (element.clientWidth) chart.setSize({ width: element.clientWidth, height: element.clientHeight });
  }).observe(element);
  return {
    chart,
    resetRange: yRange.reset,
    draw(data, min, max) {
      chart.setData(data, false);
      chart.setScale("x", { min, max });
    },
    repaint() {
      chart.redraw(false, true);
    },
    /** Moves the cursor to the point with that index; null removes it. */
    point(index) {
      const left = index === null ? -10 : chart.valToPos(chart.data[0][index], "x");
      chart.setCursor({ left, top: index === null ? -10 : chart.over.clientHeight / 2 });
    },
  };
}

/** Draws a vertical line at each of `times()`: the restarts of the centre. */
export function markTimes(chart, times) {
  chart.hooks.draw = [...(chart.hooks.draw ?? []), (u) => {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.strokeStyle = colour("wait");
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
    for (const time of times()) {
      const x = u.valToPos(time, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }];
}

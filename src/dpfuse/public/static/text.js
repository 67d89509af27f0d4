// Numbers and times as text.

/** A Gaussian is within so many standard deviations of its mean with probability 95%. */
export const SPREAD = 1.96;

const formats = new Map();

/** A number with that many digits after the point. */
export function fixed(value, digits) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const places = Math.min(Math.max(digits, 0), 12);
  if (!formats.has(places)) {
    formats.set(places, new Intl.NumberFormat("en", { minimumFractionDigits: places, maximumFractionDigits: places }));
  }
  return formats.get(places).format(value).replace("-", "−");
}

/** The number of digits after the point that shows two significant digits. */
export function digitsFor(size) {
  return size > 0 && Number.isFinite(size) ? 1 - Math.floor(Math.log10(size)) : 2;
}

/** A number with `count` significant digits: 0.000420, 1.50, 231. */
export function significant(value, count = 3) {
  if (value === 0) return "0";
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (Math.abs(value) < 1e-4) return value.toExponential(count - 1).replaceAll("-", "−");
  return fixed(value, count - 1 - Math.floor(Math.log10(Math.abs(value))));
}

/** Seconds as 4:05 or 1:04:05, with tenths if `hasTenths`. */
export function clock(seconds, hasTenths = false) {
  const tenths = Math.round(10 * seconds);
  const whole = Math.floor(tenths / 10);
  const pad = (number) => String(number).padStart(2, "0");
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor(whole / 60) % 60;
  const text = hours ? `${hours}:${pad(minutes)}:${pad(whole % 60)}` : `${minutes}:${pad(whole % 60)}`;
  return hasTenths ? `${text}.${tenths % 10}` : text;
}

/** The time of day, by the reader's clock, of seconds since 1970: 14:03:05. */
export function timeOfDay(seconds) {
  return new Date(1000 * seconds).toLocaleTimeString("en-GB");
}

/** A length of time in words: 20 s, 5 min. */
export function duration(seconds) {
  const [size, unit] = seconds >= 60 ? [seconds / 60, "min"] : [seconds, "s"];
  return `${fixed(size, Number.isInteger(size) ? 0 : seconds < 0.1 ? 2 : 1)} ${unit}`;
}

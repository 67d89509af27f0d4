// The last minutes of one stream. A skipped step is a gap: a point without values.

export class History {
  #points = [];

  constructor(capacity) {
    this.capacity = capacity;
  }

  clear() {
    this.#points = [];
  }

  get last() {
    return this.#points.at(-1) ?? null;
  }

  get length() {
    return this.#points.length;
  }

  /** Adds a point; false if it or a later one is there already. */
  add(point) {
    const next = this.last ? this.last.step + 1 : point.step;
    if (point.step < next) return false;
    if (point.step - next > this.capacity) this.clear();
    else for (let step = next; step < point.step; step++) this.#points.push({ step, isGap: true });
    this.#points.push(point);
    if (this.#points.length > 1.25 * this.capacity) this.#points.splice(0, this.#points.length - this.capacity);
    return true;
  }

  /** The points from a step on, in order. */
  since(step) {
    const first = this.#points[0]?.step ?? 0;
    return this.#points.slice(Math.max(0, step - first));
  }

  /** The newest points that have values, the newest first. */
  newest(count) {
    const found = [];
    for (let i = this.#points.length - 1; i >= 0 && found.length < count; i--) {
      if (!this.#points[i].isGap) found.push(this.#points[i]);
    }
    return found;
  }
}

// A time series on a canvas: axes, gaps, a reading under the pointer or the arrow keys, and a range that can be selected.

import { time } from "./format.js";

/** Steps that look round on an axis. */
const STEPS = [1, 2, 2.5, 5, 10];
const LEFT = 52;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 22;

/** Values of an axis from zero: at most `most` steps. */
export function axis(max, most = 4) {
  if (!(max > 0)) return [0, 1];
  const rough = max / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = STEPS.map((one) => one * power).find((one) => one >= rough - 1e-12);
  const ticks = [];
  for (let n = 0; n * step < max + step * 0.999; n += 1) ticks.push(Number((n * step).toPrecision(12)));
  return ticks;
}

/** Times of an axis on whole minutes or hours. */
export function timeAxis(from, to, most = 6) {
  const steps = [5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400].map((s) => s * 1000);
  const step = steps.find((one) => (to - from) / one <= most) ?? steps[steps.length - 1];
  const ticks = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) ticks.push(at);
  return ticks;
}

/** Parts of a series without gaps: lists of indexes. A missing value or a long pause is a gap. */
export function segments(times, values, gapMs) {
  const all = [];
  let open = null;
  times.forEach((at, index) => {
    const missing = values[index] === null || values[index] === undefined;
    const late = index > 0 && at - times[index - 1] > gapMs;
    if (missing || late) open = null;
    if (missing) return;
    if (!open) all.push((open = []));
    open.push(index);
  });
  return all;
}

/** The index of the time next to `at`, or -1. */
export function nearest(times, at) {
  let best = -1;
  times.forEach((one, index) => {
    if (best < 0 || Math.abs(one - at) < Math.abs(times[best] - at)) best = index;
  });
  return best;
}

const Base = globalThis.HTMLElement ?? class {};

class TimePlot extends Base {
  #data = null;
  #canvas = null;
  #tip = null;
  #range = null;
  #drag = null;
  #reading = -1;

  /** `{label, times, series: [{name, color, values}], format, gapMs}`; colors are names of CSS variables. */
  set data(data) {
    this.#data = data;
    if (this.#canvas) this.#draw();
  }

  get data() {
    return this.#data;
  }

  connectedCallback() {
    if (!this.#canvas) {
      this.#canvas = document.createElement("canvas");
      this.#canvas.tabIndex = 0;
      this.#canvas.setAttribute("role", "img");
      this.#tip = document.createElement("div");
      this.#tip.className = "plot-tip";
      this.#tip.hidden = true;
      this.#tip.setAttribute("aria-live", "polite");
      this.append(this.#canvas, this.#tip);
      this.#canvas.addEventListener("pointermove", (event) => this.#point(event));
      this.#canvas.addEventListener("pointerleave", () => this.#read(-1));
      this.#canvas.addEventListener("pointerdown", (event) => this.#begin(event));
      this.#canvas.addEventListener("pointerup", (event) => this.#end(event));
      this.#canvas.addEventListener("dblclick", () => this.#show(null));
      this.#canvas.addEventListener("keydown", (event) => this.#key(event));
      this.#canvas.addEventListener("blur", () => this.#read(-1));
    }
    this.resized = new ResizeObserver(() => this.#draw());
    this.resized.observe(this);
    this.theme = matchMedia("(prefers-color-scheme: dark)");
    this.onTheme = () => this.#draw();
    this.theme.addEventListener("change", this.onTheme);
  }

  disconnectedCallback() {
    this.resized.disconnect();
    this.theme.removeEventListener("change", this.onTheme);
  }

  #show(range) {
    this.#range = range;
    this.#draw();
  }

  /** The visible times: all, or the selected range. */
  #span() {
    const { times } = this.#data;
    return this.#range ?? [times[0] ?? 0, times[times.length - 1] ?? 1];
  }

  #x(at) {
    const [from, to] = this.#span();
    const width = this.#canvas.clientWidth - LEFT - RIGHT;
    return LEFT + (to > from ? ((at - from) / (to - from)) * width : 0);
  }

  #timeAt(x) {
    const [from, to] = this.#span();
    const width = this.#canvas.clientWidth - LEFT - RIGHT;
    return from + (Math.min(Math.max(x - LEFT, 0), width) / width) * (to - from);
  }

  #point(event) {
    if (!this.#data?.times.length) return;
    this.#read(nearest(this.#data.times, this.#timeAt(event.offsetX)));
    if (this.#drag) this.#draw(event.offsetX);
  }

  #begin(event) {
    if (event.button !== 0) return;
    this.#drag = { x: event.offsetX };
    this.#canvas.setPointerCapture(event.pointerId);
  }

  #end(event) {
    const from = this.#drag?.x;
    this.#drag = null;
    // A short movement is a click.
    if (from === undefined || Math.abs(event.offsetX - from) < 12) return this.#draw();
    const [a, b] = [this.#timeAt(from), this.#timeAt(event.offsetX)];
    this.#show([Math.min(a, b), Math.max(a, b)]);
  }

  #key(event) {
    const { times } = this.#data ?? { times: [] };
    if (event.key === "Escape") return this.#show(null);
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -times.length, End: times.length }[event.key];
    if (!step || !times.length) return;
    event.preventDefault();
    const at = this.#reading < 0 ? times.length - 1 : this.#reading + step;
    this.#read(Math.min(Math.max(at, 0), times.length - 1));
  }

  #read(index) {
    this.#reading = index;
    this.#draw();
  }

  #draw(dragTo) {
    const canvas = this.#canvas;
    const data = this.#data;
    if (!canvas || !data || !canvas.clientWidth) return;
    const { times, series, format } = data;
    const [from, to] = this.#span();
    const visible = times.map((at, index) => index).filter((index) => times[index] >= from && times[index] <= to);
    const ratio = globalThis.devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const style = getComputedStyle(this);
    const color = (name) => style.getPropertyValue(name).trim();
    const draw = canvas.getContext("2d");
    draw.scale(ratio, ratio);
    draw.font = `11px ${style.fontFamily}`;
    const largest = Math.max(0, ...series.flatMap((one) => visible.map((index) => one.values[index] ?? 0)));
    const ticks = axis(largest);
    const top = ticks[ticks.length - 1];
    const y = (value) => height - BOTTOM - (value / top) * (height - TOP - BOTTOM);
    draw.strokeStyle = color("--line");
    draw.fillStyle = color("--muted");
    draw.lineWidth = 1;
    draw.textAlign = "right";
    draw.textBaseline = "middle";
    for (const tick of ticks) {
      const at = Math.round(y(tick)) + 0.5;
      draw.beginPath();
      draw.moveTo(LEFT, at);
      draw.lineTo(width - RIGHT, at);
      draw.stroke();
      draw.fillText(format(tick), LEFT - 8, at);
    }
    draw.textBaseline = "alphabetic";
    draw.textAlign = "center";
    for (const at of timeAxis(from, to, width < 420 ? 3 : 6)) {
      const x = this.#x(at);
      const clock = new Date(at).toTimeString();
      if (x > LEFT + 12 && x < width - RIGHT - 16) {
        draw.fillText(to - from < 180_000 ? clock.slice(0, 8) : clock.slice(0, 5), x, height - 6);
      }
    }
    for (const one of series) {
      draw.strokeStyle = color(one.color);
      draw.fillStyle = color(one.color);
      draw.lineWidth = 1.5;
      draw.lineJoin = "round";
      const shownTimes = visible.map((index) => times[index]);
      const shownValues = visible.map((index) => one.values[index]);
      for (const part of segments(shownTimes, shownValues, data.gapMs)) {
        draw.beginPath();
        part.forEach((index, place) => {
          const [px, py] = [this.#x(shownTimes[index]), y(shownValues[index])];
          if (place) draw.lineTo(px, py);
          else draw.moveTo(px, py);
        });
        draw.stroke();
        if (series.length === 1 || part.length === 1) {
          draw.globalAlpha = part.length === 1 ? 1 : 0.1;
          const [first, last] = [this.#x(shownTimes[part[0]]), this.#x(shownTimes[part[part.length - 1]])];
          draw.lineTo(last, height - BOTTOM);
          draw.lineTo(first, height - BOTTOM);
          if (part.length === 1) draw.arc(first, y(shownValues[part[0]]), 2, 0, 7);
          draw.fill();
          draw.globalAlpha = 1;
        }
      }
    }
    if (this.#drag && dragTo !== undefined) {
      draw.fillStyle = color("--accent");
      draw.globalAlpha = 0.12;
      draw.fillRect(this.#drag.x, TOP, dragTo - this.#drag.x, height - TOP - BOTTOM);
      draw.globalAlpha = 1;
    }
    this.#showTip(draw, y, color, height);
    const last = times.length - 1;
    const now = series.map((one) => `${one.name} ${format(one.values[last] ?? 0)}`).join(", ");
    const label = last < 0 ? "no data yet" : `now ${now}. Arrow keys read earlier values`;
    canvas.setAttribute("aria-label", `${data.label}: ${label}`);
  }

  #showTip(draw, y, color, height) {
    const { times, series, format } = this.#data;
    const index = this.#reading;
    this.#tip.hidden = index < 0 || index >= times.length;
    if (this.#tip.hidden) return;
    const x = this.#x(times[index]);
    draw.strokeStyle = color("--muted");
    draw.lineWidth = 1;
    draw.beginPath();
    draw.moveTo(Math.round(x) + 0.5, TOP);
    draw.lineTo(Math.round(x) + 0.5, height - BOTTOM);
    draw.stroke();
    for (const one of series) {
      const value = one.values[index];
      if (value === null || value === undefined) continue;
      draw.fillStyle = color(one.color);
      draw.beginPath();
      draw.arc(x, y(value), 3, 0, 7);
      draw.fill();
    }
    const lines = series.map((one) => `${one.name} ${format(one.values[index] ?? 0)}`);
    this.#tip.textContent = [time(times[index]), ...lines].join("  ·  ");
    // At the side with more room. Styles set by script are allowed by the policy, style attributes are not.
    const right = x > this.#canvas.clientWidth / 2;
    this.#tip.style.left = right ? "auto" : `${x + 8}px`;
    this.#tip.style.right = right ? `${this.#canvas.clientWidth - x + 8}px` : "auto";
  }
}

globalThis.customElements?.define("time-plot", TimePlot);

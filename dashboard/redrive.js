// Redrives dead letters in small steps, so that the progress is visible and the work can be stopped. It goes on while
// the user looks at other screens.

import { path, post } from "./api.js";
import { explain } from "./components.js";
import { count, plural } from "./format.js";
import { html } from "./html.js";

/** Messages of one request. */
const STEP = 100;

let job = null;
let redraw = () => {};

export const onRedraw = (draw) => {
  redraw = draw;
};

export const isRunning = () => job !== null && !job.ended;

/** Counts finished steps, so that screens can load their lists again. */
export let steps = 0;

/**
 * Starts a redrive. Without `seqs`, the oldest `total` dead letters are moved. `to` is another queue, if any.
 * Returns when it has ended.
 */
export async function redrive({ queue, seqs, total, to }) {
  const own = { queue, to, total: seqs ? seqs.length : total, moved: 0, stopping: false, ended: false, error: null };
  job = own;
  redraw();
  try {
    for (let at = 0; at < own.total && !own.stopping; ) {
      const size = Math.min(STEP, own.total - at);
      const asked = seqs ? { seqs: seqs.slice(at, at + size) } : { limit: size };
      const { moved } = await post(path("queues", queue, "dead-letters", "redrive"), to ? { ...asked, to } : asked);
      own.moved += moved;
      at += size;
      steps += 1;
      redraw();
      // Messages of the oldest may have gone meanwhile.
      if (!seqs && moved < size) break;
    }
  } catch (error) {
    own.error = error;
  }
  own.ended = true;
  steps += 1;
  redraw();
}

export function redriveView() {
  if (!job) return null;
  const { queue, to, total, moved, stopping, ended, error } = job;
  const where = to ? `to ${to}` : "to where they came from";
  const text = error
    ? `${explain(error)} ${plural(moved, "message")} moved before that.`
    : ended
      ? `${plural(moved, "message")} of ${queue} moved ${where}${moved < total ? `; ${count(total - moved)} not moved` : ""}.`
      : `Moving ${plural(total, "message")} of ${queue} ${where}: ${count(moved)} done.`;
  return html`
    <div class="job ${error ? "error" : ""}" role="status">
      <span>${text}</span>
      ${!ended && html`<progress max=${total} .value=${moved} aria-label="Redriven messages"></progress>`}
      ${ended
        ? html`<button
            @click=${() => {
              job = null;
              redraw();
            }}
          >
            Close
          </button>`
        : html`<button
            ?disabled=${stopping}
            @click=${() => {
              job.stopping = true;
              redraw();
            }}
          >
            ${stopping ? "Stopping…" : "Stop"}
          </button>`}
    </div>
  `;
}

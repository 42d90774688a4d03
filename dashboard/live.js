// The event stream: one request that delivers the overview whenever it changed. `EventSource` cannot send credentials, so
// the stream is read with `fetch`.

import { ApiError, path, request, withQuery } from "./api.js";

const RETRY_MS = [1000, 2000, 5000, 10_000];

/** Splits a stream of text into events: calls `emit(name, data)` for each. */
export function parser(emit) {
  let rest = "";
  return (text) => {
    const blocks = (rest + text).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      let name = "message";
      const data = [];
      for (const line of block.split("\n")) {
        if (line.startsWith("event: ")) name = line.slice(7);
        else if (line.startsWith("data: ")) data.push(line.slice(6));
      }
      if (data.length) emit(name, data.join("\n"));
    }
  };
}

/**
 * Follows the overview. `changed({overview, state, error})` is called with every event and change of state: `live`,
 * `connecting` or `refused`. While the page is hidden, nothing is requested.
 */
export class Live {
  #changed;
  #query = {};
  #abort = null;
  #failures = 0;
  #timer = 0;
  #stopped = true;

  constructor(changed) {
    this.#changed = changed;
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) this.#close();
      else this.#connect();
    });
  }

  /** Follows another page of queues. */
  follow(query) {
    const same = !this.#stopped && JSON.stringify(query) === JSON.stringify(this.#query);
    if (same) return;
    this.#query = query;
    this.#stopped = false;
    this.#close();
    this.#connect();
  }

  stop() {
    this.#stopped = true;
    this.#close();
  }

  #close() {
    this.#abort?.abort();
    this.#abort = null;
    clearTimeout(this.#timer);
  }

  async #connect() {
    if (this.#stopped || this.#abort || document.hidden) return;
    clearTimeout(this.#timer);
    const abort = new AbortController();
    this.#abort = abort;
    try {
      const url = withQuery(path("overview", "events"), this.#query);
      const response = await request("GET", url, { signal: abort.signal });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      const feed = parser((name, data) => this.#receive(name, JSON.parse(data)));
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        feed(value);
      }
      throw new ApiError(0, { detail: "The connection to the server ended." });
    } catch (error) {
      if (this.#abort !== abort) return;
      this.#abort = null;
      if (error.status === 401) return;
      this.#changed({ state: error.isForbidden ? "refused" : "connecting", error });
      const wait = RETRY_MS[Math.min(this.#failures, RETRY_MS.length - 1)];
      this.#failures += 1;
      this.#timer = setTimeout(() => this.#connect(), wait);
    }
  }

  #receive(name, data) {
    if (name === "overview") {
      this.#failures = 0;
      this.#changed({ overview: data, state: "live" });
    }
    // After `ended` the stream closes, and the next request gets the problem as its answer.
  }
}

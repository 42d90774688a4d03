// The audit log: logins and administrative operations, newest first.

import { get, path } from "../api.js";
import { command, empty, loaded } from "../components.js";
import { count, time } from "../format.js";
import { html } from "../html.js";
import { address } from "../router.js";

const PAGE = 200;

export function open({ query: given, update, navigate }) {
  let filter = read(given);
  let closed = false;
  let typing = 0;
  const state = { value: undefined, error: null };

  function read({ caller = "", action = "", outcome = "" }) {
    return { caller, action, outcome };
  }

  async function load() {
    try {
      const page = await get(path("audit"), { ...filter, max: PAGE });
      Object.assign(state, { value: page.records.toReversed(), error: null });
    } catch (error) {
      state.error = error;
    }
    if (!closed) update();
  }
  load();

  const set = (field) => (event) => {
    const next = { ...filter, [field]: event.target.value.trim() };
    clearTimeout(typing);
    typing = setTimeout(() => navigate(address(["audit"], next), { replace: true }), 250);
  };

  function list(records) {
    if (records.length === 0) return empty("No records", "Logins and administrative operations appear here.");
    return html`
      <div class="table-wrap" tabindex="0" role="region" aria-label="Records">
        <table class="list">
          <thead>
            <tr>
              <th scope="col">Time</th>
              <th scope="col">Caller</th>
              <th scope="col">Action</th>
              <th scope="col">Object</th>
              <th scope="col">Outcome</th>
              <th scope="col" class="wide">Protocol</th>
              <th scope="col" class="wide">Address</th>
            </tr>
          </thead>
          <tbody>
            ${records.map(
              (record) => html`
                <tr key=${record.seq}>
                  <td class="nowrap">${time(record.at)}</td>
                  <td>${record.caller || record.kind}</td>
                  <td class="nowrap">${record.action.replaceAll("_", " ")}${record.count > 1 ? ` × ${count(record.count)}` : ""}</td>
                  <td class="break">${record.object || "–"}${record.detail && record.detail !== record.object ? html` <span class="dim">${record.detail}</span>` : null}</td>
                  <td class=${record.outcome === "done" ? "" : "bad"}>${record.outcome}${record.reason ? `: ${record.reason}` : ""}</td>
                  <td class="wide">${record.protocol}</td>
                  <td class="wide nowrap">${record.address ?? "–"}</td>
                </tr>
              `,
            )}
          </tbody>
        </table>
      </div>
    `;
  }

  function view() {
    const flags = [filter.caller && `--caller ${filter.caller}`, filter.action && `--action ${filter.action}`, filter.outcome === "refused" && "--refused"];
    return html`
      <div class="title">
        <h1>Audit log</h1>
        <div class="actions"><button @click=${load}>Refresh</button></div>
      </div>
      <div class="filters">
        <label><span>Caller</span><input value=${filter.caller} autocomplete="off" spellcheck="false" @input=${set("caller")} /></label>
        <label><span>Action</span><input value=${filter.action} placeholder="login, purge, redrive …" autocomplete="off" @input=${set("action")} /></label>
        <label>
          <span>Outcome</span>
          <select @change=${set("outcome")}>
            ${["", "done", "refused", "unknown"].map(
              (one) => html`<option key=${one} value=${one} ?selected=${filter.outcome === one}>${one || "all"}</option>`,
            )}
          </select>
        </label>
      </div>
      ${loaded(state, "the audit log", list, load)} ${command(["malote audit", ...flags].filter(Boolean).join(" "))}
    `;
  }

  function changed(query) {
    filter = read(query);
    load();
  }

  return {
    title: "Audit log",
    query: { max: 0 },
    view,
    changed,
    close: () => {
      closed = true;
      clearTimeout(typing);
    },
  };
}

// Parts that several screens use: dialogs, notices, tables, copied text. Each is a function that returns a tree.

import { html } from "./html.js";

let redraw = () => {};
let dialog = null;
let notices = [];
let noticeId = 0;

/** The application sets how the page is drawn again. */
export const onRedraw = (draw) => {
  redraw = draw;
};

/** Shows a short message for some seconds; errors stay until they are closed. */
export function notice(text, kind = "done") {
  const id = (noticeId += 1);
  notices = [...notices.slice(-3), { id, text, kind }];
  if (kind === "done") setTimeout(() => dismiss(id), 5000);
  redraw();
}

function dismiss(id) {
  notices = notices.filter((one) => one.id !== id);
  redraw();
}

/** What went wrong, for people: a refused permission is named as such. */
export function explain(error) {
  if (error.isForbidden) return `Not permitted: ${error.message}`;
  return error.fix ? `${error.message}. ${error.fix}`.replace("..", ".") : error.message;
}

export const noticeError = (error) => notice(explain(error), error.isForbidden ? "forbidden" : "error");

export const noticesView = () => html`
  <div class="notices" role="status" aria-live="polite">
    ${notices.map(
      (one) => html`
        <div key=${one.id} class="notice ${one.kind}">
          <span>${one.text}</span>
          <button class="quiet" aria-label="Close this message" @click=${() => dismiss(one.id)}>✕</button>
        </div>
      `,
    )}
  </div>
`;

/** Opens a dialog. `view` returns its content; `run` does the work and closes the dialog if it succeeds. */
export function openDialog({ title, view, action, run, danger = false, ready = () => true, wide = false }) {
  dialog = { id: (noticeId += 1), title, view, action, run, danger, ready, wide, error: null, busy: false };
  redraw();
}

export function closeDialog() {
  dialog = null;
  redraw();
}

async function submit(event) {
  event.preventDefault();
  const open = dialog;
  if (!open || open.busy || !open.ready()) return;
  Object.assign(open, { busy: true, error: null });
  redraw();
  try {
    await open.run(new FormData(event.target));
    if (dialog === open) dialog = null;
  } catch (error) {
    Object.assign(open, { busy: false, error });
  }
  redraw();
}

export function dialogView() {
  if (!dialog) return null;
  const open = dialog;
  const show = (el) => {
    // After the element is part of the page.
    queueMicrotask(() => el.isConnected && el.showModal());
  };
  return html`
    <dialog
      key=${open.id}
      class=${open.wide ? "wide" : ""}
      aria-label=${open.title}
      ref=${show}
      @close=${() => dialog === open && closeDialog()}
    >
      <form method="dialog" @submit=${submit}>
        <h2>${open.title}</h2>
        ${open.view()} ${open.error && html`<p class="problem" role="alert">${explain(open.error)}</p>`}
        <div class="buttons">
          <button type="button" @click=${closeDialog}>Cancel</button>
          <button class=${open.danger ? "danger" : "primary"} ?disabled=${open.busy || !open.ready()}>
            ${open.busy ? "Working…" : open.action}
          </button>
        </div>
      </form>
    </dialog>
  `;
}

/** Asks before an action. `word` must be typed first, if the action cannot be undone. */
export function confirm({ title, text, action, word, run }) {
  let typed = "";
  openDialog({
    title,
    action,
    danger: true,
    ready: () => word === undefined || typed === word,
    view: () => html`
      <p>${text}</p>
      ${word !== undefined &&
      html`
        <label>
          <span>Type <code>${word}</code> to confirm</span>
          <input
            name="confirm"
            autocomplete="off"
            spellcheck="false"
            @input=${(event) => {
              typed = event.target.value;
              redraw();
            }}
          />
        </label>
      `}
    `,
    run,
  });
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    notice("Copied");
  } catch {
    notice("The browser does not allow copying here. Select the text instead.", "error");
  }
}

/** The command that does in the terminal what the screen does. */
export const command = (text) => html`
  <div class="command">
    <span class="command-label">In the terminal</span>
    <code>${text}</code>
    <button class="quiet" aria-label="Copy the command" @click=${() => copy(text)}>Copy</button>
  </div>
`;

/** A block of code with a button that copies it. */
export const codeBlock = (text, label = "Copy") => html`
  <div class="code">
    <pre tabindex="0">${text}</pre>
    <button class="quiet" @click=${() => copy(text)}>${label}</button>
  </div>
`;

/** Alternatives of which one is shown. Links if they have an address. */
export const tabs = (label, items, current) => html`
  <nav class="tabs" aria-label=${label}>
    ${items.map(
      (item) => html`
        <a key=${item.id} href=${item.href} aria-current=${item.id === current ? "page" : null}>
          ${item.label} ${item.count ? html`<span class="badge">${item.count}</span>` : null}
        </a>
      `,
    )}
  </nav>
`;

/** A number with its name. */
export const stat = (label, value, { href, tone, title } = {}) => {
  const content = html`
    <span class="stat-label">${label}</span>
    <span class="stat-value ${tone ?? ""}">${value}</span>
  `;
  return href
    ? html`<a class="stat" href=${href} title=${title}>${content}</a>`
    : html`<div class="stat" title=${title}>${content}</div>`;
};

/** A placeholder for lists without items. */
export const empty = (title, text) => html`
  <div class="empty">
    <p class="empty-title">${title}</p>
    ${text && html`<p>${text}</p>`}
  </div>
`;

export const loading = (what) => html`<p class="loading" role="status">Loading ${what}…</p>`;

/** An error in place of content. */
export const failure = (error, retry) => html`
  <div class="empty ${error.isForbidden ? "forbidden" : "failed"}" role="alert">
    <p class="empty-title">${error.isForbidden ? "Not permitted" : "This could not be loaded"}</p>
    <p>${explain(error)}</p>
    ${retry && !error.isForbidden && html`<button @click=${retry}>Try again</button>`}
  </div>
`;

/** A loaded value: its view, or what is shown instead. */
export function loaded(state, what, view, retry) {
  if (state.error) return failure(state.error, retry);
  return state.value === undefined ? loading(what) : view(state.value);
}

/** A table head that sorts. `sort` is `{by, descending}`. */
export const sortHead = (columns, sort, change) => html`
  <thead>
    <tr>
      ${columns.map(({ id, label, kind = "", title }) => {
        const active = sort.by === id;
        const direction = active ? (sort.descending ? "descending" : "ascending") : null;
        const next = { by: id, descending: active ? !sort.descending : id !== "name" };
        return html`
          <th key=${id} class=${kind} scope="col" aria-sort=${direction}>
            <button class="sort" title=${title} @click=${() => change(next)}>
              ${label}<span class="arrow" aria-hidden="true">${active ? (sort.descending ? "↓" : "↑") : ""}</span>
            </button>
          </th>
        `;
      })}
    </tr>
  </thead>
`;

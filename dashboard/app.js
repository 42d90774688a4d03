// The application: session, navigation, the event stream, and the frame around each screen.
//
// A screen is a function `open(context)` that returns `{title, query, view, close, live}`. `view()` returns a tree; the
// whole page is drawn again whenever something changed, at most once per frame. `query` is the page of queues that the
// event stream delivers while the screen is open.

import { get, isSignedIn, onSignInNeeded, path, signOut } from "./api.js";
import { dialogView, closeDialog, explain, noticesView, onRedraw } from "./components.js";
import { count } from "./format.js";
import { html, render } from "./html.js";
import { Live } from "./live.js";
import "./plot.js";
import { onRedraw as onRedriveRedraw, redriveView } from "./redrive.js";
import { match } from "./router.js";
import { open as audit } from "./screens/audit.js";
import { open as deadLetters } from "./screens/dead-letters.js";
import { loginView } from "./screens/login.js";
import { open as overview } from "./screens/overview.js";
import { open as queue } from "./screens/queue.js";
import { open as queues } from "./screens/queues.js";
import { open as session } from "./screens/session.js";
import { open as topic } from "./screens/topic.js";
import { open as topics } from "./screens/topics.js";

const SCREENS = { overview, queues, queue, session, deadLetters, topics, topic, audit };

const NAVIGATION = [
  { screen: "overview", label: "Overview", href: "/" },
  { screen: "queues", label: "Queues", href: "/ui/queues", also: ["queue", "session"] },
  { screen: "deadLetters", label: "Dead letters", href: "/ui/dead-letters" },
  { screen: "topics", label: "Topics", href: "/ui/topics", also: ["topic"] },
  { screen: "audit", label: "Audit log", href: "/ui/audit" },
];

const root = document.getElementById("app");
let shown = null;
let overviewNow = null;
let liveState = "connecting";
let liveError = null;
let signInNeeded = false;
/** Server time minus the browser's. */
let skew = 0;
let scheduled = false;

/** Draws the page in the next frame. */
function update() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    render(root, page());
  });
}

const live = new Live(({ overview: newer, state, error }) => {
  liveState = state;
  liveError = error ?? null;
  if (newer) {
    overviewNow = newer;
    skew = newer.at - Date.now();
    shown?.screen.live?.(newer);
  }
  update();
});

/** What a screen gets. */
const context = (params) => ({
  params,
  query: Object.fromEntries(new URLSearchParams(location.search)),
  update,
  navigate,
  overview: () => overviewNow,
  /** The time of the server. */
  now: () => Date.now() + skew,
  /** Changes the page of queues that the event stream delivers. */
  follow: (query) => live.follow(query),
});

function navigate(href, { replace = false } = {}) {
  if (href !== location.pathname + location.search) {
    history[replace ? "replaceState" : "pushState"](null, "", href);
  }
  closeDialog();
  show();
}

function show() {
  const found = match(location.pathname);
  const name = found?.screen ?? "missing";
  // The same screen with other parameters of the address can keep its state.
  const kept = shown?.name === name && JSON.stringify(shown.params) === JSON.stringify(found?.params);
  const moved = shown !== null && !kept;
  if (kept && shown.screen.changed) {
    shown.screen.changed(Object.fromEntries(new URLSearchParams(location.search)));
  } else {
    shown?.screen.close?.();
    const screen = found ? SCREENS[name](context(found.params)) : missing();
    shown = { name, params: found?.params, screen };
    live.follow(screen.query ?? { max: 0 });
  }
  document.title = `${shown.screen.title} · Malote`;
  if (moved) {
    scrollTo(0, 0);
    // Screen readers and the keyboard go on at the new screen.
    queueMicrotask(() => document.getElementById("main")?.focus({ preventScroll: true }));
  }
  update();
}

const missing = () => ({
  title: "Not found",
  view: () => html`
    <h1>Not found</h1>
    <p>This address shows nothing. <a href="/">Overview</a></p>
  `,
});

function page() {
  if (signInNeeded) {
    return loginView({
      update,
      done: () => {
        signInNeeded = false;
        shown = null;
        show();
      },
    });
  }
  const dead = overviewNow?.counts.dead_lettered ?? 0;
  return html`
    <a class="skip" href="#main">Skip to content</a>
    <header class="frame">
      <a class="brand" href="/"><img src="/ui/icon.svg" alt="" width="24" height="24" />Malote</a>
      <nav class="main-nav" aria-label="Screens">
        ${NAVIGATION.map(({ screen, label, href, also = [] }) => {
          const current = shown?.name === screen || also.includes(shown?.name);
          return html`
            <a key=${screen} href=${href} aria-current=${current ? "page" : null}>
              ${label}
              ${screen === "deadLetters" && dead > 0 && html`<span class="badge">${count(dead)}</span>`}
            </a>
          `;
        })}
      </nav>
      <div class="frame-foot">
        <span class="live ${liveState}" title=${liveError ? explain(liveError) : "Values are updated every second"}>
          ${{ live: "Live", connecting: "Reconnecting…", refused: "Not permitted" }[liveState]}
        </span>
        ${overviewNow?.caller && html`<span class="caller">${overviewNow.caller}</span>`}
        ${isSignedIn() && html`<button class="quiet" @click=${signOut}>Sign out</button>`}
        ${overviewNow && html`<span class="dim version">${overviewNow.version}</span>`}
      </div>
    </header>
    <main id="main" tabindex="-1">
      ${liveState === "connecting" && liveError && overviewNow
        ? html`<p class="banner" role="status">${explain(liveError)} Values are old; trying again.</p>`
        : null}
      ${shown && html`<div key=${shown.name + JSON.stringify(shown.params)}>${shown.screen.view()}</div>`}
    </main>
    ${redriveView()} ${noticesView()} ${dialogView()}
  `;
}

onRedraw(update);
onRedriveRedraw(update);
onSignInNeeded(() => {
  signInNeeded = true;
  live.stop();
  overviewNow = null;
  update();
});

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button !== 0) return;
  if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey || link.target) return;
  const url = new URL(link.href);
  if (url.origin !== location.origin || !match(url.pathname)) return;
  if (url.hash && url.pathname === location.pathname) return;
  event.preventDefault();
  navigate(url.pathname + url.search);
});
addEventListener("popstate", show);
// Ages and remaining times change without events.
setInterval(update, 1000);

if (isSignedIn()) {
  show();
} else {
  // Asked once, so that a server with credentials shows the login and no half-drawn screen.
  get(path("overview"), { max: 0 }).then(
    (first) => {
      overviewNow = first;
      show();
    },
    (error) => {
      if (error.status !== 401) show();
    },
  );
}

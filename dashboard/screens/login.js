// Signs in as the API does: with a user name and password, or with a token.

import { basic, get, path, signIn } from "../api.js";
import { explain } from "../components.js";
import { html } from "../html.js";

let kind = "password";
let error = null;
let busy = false;

export function loginView({ update, done }) {
  const submit = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const token = form.get("token")?.trim();
    signIn(kind === "token" ? `Bearer ${token}` : basic(form.get("user"), form.get("password")));
    busy = true;
    error = null;
    update();
    try {
      await get(path("overview"), { max: 0 });
      busy = false;
      done();
    } catch (caught) {
      // 401 has also asked for credentials again.
      sessionStorage.clear();
      error = caught;
      busy = false;
      update();
    }
  };
  const choose = (next) => () => {
    kind = next;
    error = null;
    update();
  };
  return html`
    <main class="login" id="main">
      <form @submit=${submit}>
        <img src="/ui/icon.svg" alt="" width="40" height="40" />
        <h1>Sign in to Malote</h1>
        <div class="choice" role="group" aria-label="Kind of credential">
          <button type="button" aria-pressed=${String(kind === "password")} @click=${choose("password")}>Password</button>
          <button type="button" aria-pressed=${String(kind === "token")} @click=${choose("token")}>Token</button>
        </div>
        ${kind === "password"
          ? html`
              <label key="user"><span>User name</span><input name="user" autocomplete="username" required /></label>
              <label key="password">
                <span>Password</span>
                <input name="password" type="password" autocomplete="current-password" required />
              </label>
            `
          : html`
              <label key="token">
                <span>Token</span>
                <input name="token" type="password" autocomplete="off" required />
              </label>
            `}
        ${error && html`<p class="problem" role="alert">${error.status === 401 ? "This credential is not valid." : explain(error)}</p>`}
        <button class="primary" ?disabled=${busy}>${busy ? "Signing in…" : "Sign in"}</button>
        <p class="dim">
          ${kind === "password" ? "Create a user with " : "Create a token with "}
          <code>${kind === "password" ? "malote user add NAME" : "malote token add LABEL --for USER"}</code>. The credential is kept
          for this tab only.
        </p>
      </form>
    </main>
  `;
}

// Calls of the public API. Credentials are kept for this tab only, and sent as a header: no cookie exists that another
// site could use.

const KEPT = "malote.authorization";

/** An error answer, or a server that cannot be reached (status 0). */
export class ApiError extends Error {
  constructor(status, problem) {
    super(problem.detail ?? problem.title ?? `The server answered ${status}`);
    this.status = status;
    this.code = problem.code;
    this.fix = problem.fix;
  }

  get isForbidden() {
    return this.status === 403;
  }
}

const listeners = new Set();

/** Calls `listener` when the server asks for credentials. */
export const onSignInNeeded = (listener) => listeners.add(listener);

const authorization = () => sessionStorage.getItem(KEPT);

export const isSignedIn = () => authorization() !== null;

export function signIn(header) {
  sessionStorage.setItem(KEPT, header);
}

export function signOut() {
  sessionStorage.removeItem(KEPT);
  for (const listener of listeners) listener();
}

/** The header for a user name and password. */
export function basic(user, password) {
  const bytes = new TextEncoder().encode(`${user}:${password}`);
  return `Basic ${btoa(String.fromCharCode(...bytes))}`;
}

/** Sends a request and returns the response if it is a success. */
export async function request(method, path, { body, headers = {}, signal } = {}) {
  const all = { ...headers };
  if (authorization()) all.authorization = authorization();
  if (body !== undefined && !all["content-type"]) {
    all["content-type"] = "application/json";
    body = JSON.stringify(body);
  }
  let response;
  try {
    // `omit`: the browser must neither add credentials of its own nor ask for them.
    response = await fetch(path, { method, body, headers: all, signal, credentials: "omit", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { detail: "The server cannot be reached." });
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  if (response.status === 401) for (const listener of listeners) listener();
  throw new ApiError(response.status, problem);
}

/** Sends a request and returns its JSON, or null if the answer has no body. */
export async function call(method, path, options) {
  const response = await request(method, path, options);
  return response.status === 204 ? null : response.json();
}

export const get = (path, query, options) => call("GET", withQuery(path, query), options);
export const post = (path, body = {}, options) => call("POST", path, { body, ...options });
export const put = (path, body = {}) => call("PUT", path, { body });
export const patch = (path, body) => call("PATCH", path, { body });
export const del = (path) => call("DELETE", path);

/** A path of the API; names are percent-encoded. */
export const path = (...segments) => `/api/v1/${segments.map(encodeURIComponent).join("/")}`;

export function withQuery(path, query = {}) {
  const pairs = Object.entries(query).filter(([, value]) => value !== "" && value !== undefined && value !== null);
  const text = new URLSearchParams(pairs).toString();
  return text ? `${path}?${text}` : path;
}

// A new broker on free ports, a headless Chromium, and calls of the API: for the tests and the screenshots.

import { spawn, spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";

export const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";

const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

/** Starts a broker. `users` are created first: `[name, password, ...options of malote user add]`. */
export async function startBroker(binary, { users = [] } = {}) {
  const data = mkdtempSync(join(tmpdir(), "malote-dashboard-"));
  for (const [name, password, ...options] of users) {
    const args = ["user", "add", name, "--data", data, "--password-stdin", ...options];
    const done = spawnSync(resolve(binary), args, { input: `${password}\n`, encoding: "utf8" });
    if (done.status !== 0) throw new Error(`malote user add: ${done.stderr}`);
  }
  const args = ["serve", "--data", data, "--http", "127.0.0.1:0", "--sqs", "127.0.0.1:0", "--amqp", "127.0.0.1:0"];
  args.push("--servicebus-admin", "off", "--log", "error");
  const child = spawn(resolve(binary), args, { stdio: ["ignore", "pipe", "pipe"] });
  const ended = new Promise((done) => child.once("exit", done));
  const url = await new Promise((found, failed) => {
    const read = (line) => {
      const at = /dashboard\s+(http:\/\/\S+?)\/?$/.exec(line);
      if (at) found(at[1]);
    };
    createInterface({ input: child.stdout }).on("line", read);
    createInterface({ input: child.stderr }).on("line", (line) => {
      read(line);
      if (process.env.SERVER_LOG) console.error(line);
    });
    ended.then((code) => failed(new Error(`the broker ended with ${code}`)));
  });
  return {
    url,
    pid: child.pid,
    stop: async () => {
      child.kill("SIGTERM");
      await ended;
      rmSync(data, { recursive: true, force: true });
    },
  };
}

/** Calls of the API as a program makes them. */
export function client(url, authorization) {
  return async (method, path, body) => {
    const headers = { "content-type": "application/json", ...(authorization ? { authorization } : {}) };
    const options = { method, headers, body: body === undefined ? undefined : JSON.stringify(body) };
    const response = await fetch(`${url}/api/v1/${path}`, options);
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
    return text ? JSON.parse(text) : null;
  };
}

/** Receives messages and dead-letters them with this reason. */
export async function fail(api, queue, max, reason, text) {
  const { messages } = await api("POST", `queues/${queue}/receive`, { max });
  for (const [index, { lease }] of messages.entries()) {
    const why = typeof text === "function" ? text(index) : text;
    await api("POST", `queues/${queue}/settle`, { leases: [lease], outcome: "dead_letter", reason, text: why });
  }
  return messages.length;
}

/** Playwright from the folder with the npm packages. */
export function packages(modules) {
  const require = createRequire(join(resolve(modules), "node_modules", "x.js"));
  return { chromium: require("playwright-core").chromium, axe: require("axe-core").source };
}

/** Starts Chromium with a new profile. */
export const startBrowser = (chromium) => chromium.launch({ executablePath: CHROMIUM, headless: true, args: FLAGS });

/**
 * A tab. Errors on the console, exceptions and requests to other origins are collected in `problems`.
 * `expected` are statuses whose console message is part of a test.
 */
export async function openTab(browser, url, { width = 1280, height = 860, dark = false, expected = [] } = {}) {
  const context = await browser.newContext({
    baseURL: url,
    viewport: { width, height },
    colorScheme: dark ? "dark" : "light",
    permissions: ["clipboard-read", "clipboard-write"],
    reducedMotion: "reduce",
  });
  // For work on the dashboard: its files from this folder instead of those in the binary.
  if (process.env.DASHBOARD_FILES) {
    await context.route(/\/ui\/.*\.(js|css|svg)$/, (route) => {
      const name = new URL(route.request().url()).pathname.slice("/ui/".length);
      return route.fulfill({ path: join(process.env.DASHBOARD_FILES, name) });
    });
  }
  const page = await context.newPage();
  page.setDefaultTimeout(60_000);
  const problems = [];
  page.on("console", (message) => {
    const allowed = expected.some((status) => message.text().includes(`status of ${status}`));
    if (message.type() === "error" && !allowed) problems.push(message.text());
  });
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("request", (request) => {
    const to = new URL(request.url());
    if (to.origin !== new URL(url).origin && to.protocol !== "data:") problems.push(`request to ${to.origin}`);
  });
  return { page, context, problems };
}

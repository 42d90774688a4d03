// Makes the pictures of the documentation: `node screenshots.mjs PATH-OF-THE-BINARY NODE_MODULES FOLDER`.

import { mkdirSync } from "node:fs";
import { join } from "node:path";

import { client, openTab, packages, startBroker, startBrowser } from "./harness.mjs";
import { flow, seed } from "./seed.mjs";

const [binary, modules, folder] = process.argv.slice(2);
/** The history has a point every ten seconds, so that plots need some of them. */
const HISTORY_MS = Number(process.env.HISTORY_MS ?? 90_000);

const open = (selector) => async (page) => {
  await page.locator(selector).first().click();
};

const PICTURES = [
  { name: "begin", path: "/", empty: true },
  { name: "overview", path: "/" },
  { name: "overview-dark", path: "/", dark: true },
  { name: "overview-small", path: "/", width: 390 },
  { name: "queues", path: "/ui/queues" },
  { name: "queue", path: "/ui/queues/payments", act: open(".message-head") },
  { name: "queue-dark-small", path: "/ui/queues/payments/dead-letters", dark: true, width: 390 },
  { name: "dead-letters", path: "/ui/dead-letters", act: open(".group button") },
  { name: "edit-and-resend", path: "/ui/queues/payments/dead-letters", act: async (page) => {
    await page.locator(".message-head").first().click();
    await page.getByRole("button", { name: "Edit and resend" }).click();
  } },
  { name: "session", path: "/ui/queues/orders/sessions/ana" },
  { name: "topic", path: "/ui/topics/sales", act: async (page) => {
    await page.getByLabel(/^Properties/).fill("total=250");
    await page.getByRole("button", { name: "Test the rules" }).click();
    await page.getByText(/rules? match/).waitFor();
  } },
];

mkdirSync(folder, { recursive: true });
const broker = await startBroker(binary);
const { chromium } = packages(modules);
const browser = await startBrowser(chromium);
const api = client(broker.url);
let failed = 0;
let stop = null;
for (const { name, path, act, empty = false, dark = false, width = 1280 } of PICTURES) {
  if (!empty && !stop) {
    await seed(api);
    stop = flow(api);
    await new Promise((done) => setTimeout(done, HISTORY_MS));
  }
  const { page, context, problems } = await openTab(browser, broker.url, { dark, width, height: width < 600 ? 844 : 800 });
  await page.goto(path);
  await page.locator("h1").waitFor();
  await page.locator(".loading").waitFor({ state: "detached" });
  await page.locator(".live.live").waitFor();
  await act?.(page);
  await page.mouse.move(0, 0);
  // Fonts and plots are drawn in the next frames.
  await page.evaluate(() => document.fonts.ready.then(() => new Promise((done) => setTimeout(done, 300))));
  await page.screenshot({ path: join(folder, `${name}.png`) });
  if (problems.length) {
    failed += 1;
    console.log(`${name}: ${problems.join("; ")}`);
  }
  await context.close();
}
await stop?.();
await browser.close();
await broker.stop();
console.log(`${PICTURES.length - failed} passed, ${failed} failed`);
process.exitCode = failed ? 1 : 0;

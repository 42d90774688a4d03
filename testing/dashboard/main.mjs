// Tests the dashboard in headless Chromium: `node main.mjs PATH-OF-THE-BINARY NODE_MODULES`. Each test has its own broker
// and profile, and does what a person does. Errors on the console and requests to other origins fail a test.

import assert from "node:assert/strict";
import { createServer } from "node:http";

import { client, fail, openTab, packages, startBroker, startBrowser } from "./harness.mjs";
import { seed } from "./seed.mjs";

const [binary, modules, only] = process.argv.slice(2);
const { chromium, axe } = packages(modules);
const browser = await startBrowser(chromium);

/** Waits until a function returns something true. */
async function until(what, check) {
  const end = Date.now() + 60_000;
  for (;;) {
    const found = await check();
    if (found) return found;
    if (Date.now() > end) throw new Error(`waited in vain: ${what}`);
    await new Promise((done) => setTimeout(done, 100));
  }
}

const button = (page, name) => page.getByRole("button", { name, exact: true });
const dialog = (page) => page.getByRole("dialog");
const stat = (page, label) => page.locator(".stat", { has: page.getByText(label, { exact: true }) }).locator(".stat-value");
/** Waits until a number of the screen has this value. */
const shows = (page, label, value) => stat(page, label).filter({ hasText: new RegExp(`^${value}$`) }).waitFor();

async function anEmptyBrokerShowsHowToBegin({ page, api, url }) {
  await page.goto("/");
  await page.getByRole("heading", { name: "Welcome" }).waitFor();
  const { host } = new URL(url);
  assert.match(await page.locator(".code pre").textContent(), new RegExp(`http://${host}/api/v1/queues/hello/messages\\?create=true`));
  for (const [protocol, language, text] of [
    ["Amazon SQS", "Python (boto3)", "endpoint_url="],
    ["Azure Service Bus", "JavaScript", "Endpoint=sb://127.0.0.1:"],
    ["RabbitMQ", "Python (pika)", "amqp://guest:guest@127.0.0.1:"],
    ["Terminal", undefined, `MALOTE_URL=${url}`],
  ]) {
    await button(page, protocol).click();
    if (language) await button(page, language).click();
    await page.locator(".code pre").filter({ hasText: text }).waitFor();
  }
  await api("POST", "queues/hello/messages/batch", { messages: [] }).catch(() => {});
  await api("PUT", "queues/hello", {});
  await page.getByRole("heading", { name: "Overview" }).waitFor();
}

async function createPublishWatchFailInspectEditAndResend({ page, api }) {
  await page.goto("/ui/queues");
  await button(page, "Create queue").click();
  await dialog(page).getByLabel("Name", { exact: true }).fill("orders");
  await dialog(page).getByLabel("Lock time").fill("nonsense");
  await button(dialog(page), "Create").click();
  await dialog(page).getByRole("alert").getByText("Lock time: write a duration").waitFor();
  await dialog(page).getByLabel("Lock time").fill("2min");
  await button(dialog(page), "Create").click();
  await page.getByRole("heading", { name: "orders" }).waitFor();
  assert.equal((await api("GET", "queues/orders")).spec.lock_ms, 120_000);

  await button(page, "Publish").click();
  await dialog(page).getByLabel("Body").fill('{"total": 5, "note": "<b>bold</b>"}');
  await dialog(page).getByLabel("Copies").fill("3");
  await dialog(page).getByLabel(/^Properties/).fill("region=eu\nvip=true");
  await dialog(page).getByText("As curl and as a command").click();
  assert.match(await dialog(page).locator("pre").last().textContent(), /^malote send orders --count 3 --prop region=eu --prop vip:=true /);
  await button(dialog(page), "Publish").click();
  await page.getByText("3 messages sent").waitFor();
  await shows(page, "Ready", 3);
  const row = page.locator(".message").first();
  await row.locator(".message-head").click();
  await row.getByLabel("Body", { exact: true }).filter({ hasText: '"note": "<b>bold</b>"' }).waitFor();
  assert.equal(await row.locator("b").count(), 0, "bodies are text");
  await row.getByText("region", { exact: true }).waitFor();
  await button(row, "Hex").click();
  await row.getByText("7b 22 74").waitFor();

  // A worker fails. The screen follows without a reload.
  await fail(api, "orders", 3, "Declined", (n) => `payment ${n} was declined`);
  await shows(page, "Ready", 0);
  await page.getByRole("link", { name: "Dead letters 3" }).last().click();
  const dead = page.locator(".message");
  await dead.nth(2).waitFor();
  assert.match(await dead.first().textContent(), /Declined.*payment 0 was declined/s);
  await page.getByLabel("Text in the loaded dead letters").fill("payment 1");
  await until("the filter", async () => (await dead.count()) === 1);
  await page.getByLabel("Text in the loaded dead letters").fill("");
  await until("all are shown", async () => (await dead.count()) === 3);

  const { id } = (await api("GET", "queues/orders/dead-letters")).messages[0];
  await dead.first().locator(".message-head").click();
  await button(dead.first(), "Edit and resend").click();
  await dialog(page).getByLabel("Body").fill('{"total": 7}');
  await dialog(page).getByLabel("Properties as JSON").fill("{nonsense");
  await button(dialog(page), "Resend").click();
  await dialog(page).getByRole("alert").getByText("not valid JSON").waitFor();
  await dialog(page).getByLabel("Properties as JSON").fill('{"region": "us"}');
  await button(dialog(page), "Resend").click();
  await page.getByText("The corrected message is sent").waitFor();
  const { messages } = await api("GET", "queues/orders/messages");
  assert.deepEqual([messages[0].body, messages[0].properties.region, messages[0].id], ['{"total": 7}', "us", id]);

  // The other two: one selected, then all.
  await until("two are left", async () => (await dead.count()) === 2);
  await dead.first().getByRole("checkbox").check();
  await button(page, "Redrive selection").click();
  await button(dialog(page), "Redrive").click();
  await page.getByText("1 message of orders moved to where they came from").waitFor();
  await until("one is left", async () => (await dead.count()) === 1);
  await button(page, "Redrive all").click();
  await button(dialog(page), "Redrive").click();
  await page.getByText("No dead letters").waitFor();
  assert.equal((await api("GET", "queues/orders")).counts.ready, 3);
}

async function threeClicksFromTheOverviewToARedrive({ page, api }) {
  await api("PUT", "queues/payments", {});
  await api("POST", "queues/payments/messages/batch", { messages: Array.from({ length: 250 }, (_, n) => ({ body: n })) });
  await fail(api, "payments", 250, "Timeout", (n) => `no answer for ${n}`);
  await page.goto("/");
  await page.getByRole("link", { name: /payments 250 dead letters/ }).click(); // 1
  await page.getByText("no answer for 249").waitFor();
  assert.match(await page.locator(".group h2").textContent(), /250\s+Timeout/);
  await button(page, "Redrive").click(); // 2
  await button(dialog(page), "Redrive").click(); // 3
  await page.getByText("250 messages of payments moved").waitFor();
  assert.equal((await api("GET", "queues/payments")).counts.ready, 250);
  await page.getByText("No dead letters").waitFor();
}

async function aRedriveCanBeStopped({ page, api }) {
  await api("PUT", "queues/slow", {});
  await api("POST", "queues/slow/messages/batch", { messages: Array.from({ length: 400 }, (_, n) => ({ body: n })) });
  await fail(api, "slow", 400, "Timeout", "late");
  let release;
  const held = new Promise((done) => (release = done));
  let requests = 0;
  await page.route("**/redrive", async (route) => {
    requests += 1;
    if (requests === 2) await held;
    await route.continue();
  });
  await page.goto("/ui/queues/slow/dead-letters");
  await button(page, "Redrive all").click();
  await button(dialog(page), "Redrive").click();
  await page.getByText("Moving 400 messages of slow to where they came from: 100 done.").waitFor();
  await button(page, "Stop").click();
  release();
  await page.getByText("200 messages of slow moved to where they came from; 200 not moved.").waitFor();
  assert.equal((await api("GET", "queues/slow")).counts.dead_lettered, 200);
}

async function pausePurgeScheduleAndAudit({ page, api }) {
  await api("PUT", "queues/emails", {});
  await page.goto("/ui/queues/emails");
  await button(page, "Pause").click();
  await page.locator("h1 .tag", { hasText: "paused" }).waitFor();
  assert.equal((await api("GET", "queues/emails")).paused, true);
  await button(page, "Resume").click();
  await until("it goes on", async () => !(await api("GET", "queues/emails")).paused);

  const at = Date.now() + 3_600_000;
  await api("POST", "queues/emails/messages/batch", { messages: [{ body: "later", at }, { body: "later too", at }, { body: "now" }] });
  await page.getByRole("link", { name: /^Scheduled/ }).click();
  const scheduled = page.locator(".message");
  await scheduled.nth(1).waitFor();
  await scheduled.first().getByText(/in 59 min/).waitFor();
  await scheduled.first().locator(".message-head").click();
  await button(scheduled.first(), "Cancel message").click();
  await button(dialog(page), "Cancel the message").click();
  await page.getByText("The message is cancelled").waitFor();
  assert.equal((await api("GET", "queues/emails")).counts.scheduled, 1);

  await button(page, "Purge").click();
  const really = button(dialog(page), "Delete the messages");
  assert.ok(await really.isDisabled(), "the name must be typed first");
  await dialog(page).getByRole("textbox").fill("email");
  assert.ok(await really.isDisabled());
  await dialog(page).getByRole("textbox").fill("emails");
  await really.click();
  await page.getByText(/messages? deleted/).waitFor();
  assert.equal((await api("GET", "queues/emails")).counts.ready, 0);

  await page.getByRole("link", { name: "Settings" }).click();
  await button(page, "Change settings").click();
  await dialog(page).getByLabel("Warning above").fill("77");
  await button(dialog(page), "Save").click();
  await page.getByText("Settings saved").waitFor();
  assert.equal((await api("GET", "queues/emails")).spec.backlog_warning, 77);

  await page.getByRole("link", { name: "Audit log" }).click();
  for (const action of ["pause", "resume", "purge", "update"]) {
    await page.getByRole("cell", { name: action, exact: true }).first().waitFor();
  }
  await page.getByLabel("Action").fill("purge");
  await until("the filter", async () => (await page.getByRole("cell", { name: "pause", exact: true }).count()) === 0);

  await page.goto("/ui/queues/emails");
  await button(page, "Delete").click();
  await dialog(page).getByRole("textbox").fill("emails");
  await button(dialog(page), "Delete the queue").click();
  await page.getByText("No queues yet").waitFor();
}

async function aSessionSaysWhyItIsBlocked({ page, api }) {
  await api("PUT", "queues/orders", { sessions: "dynamic" });
  await api("POST", "queues/orders/messages/batch", { messages: ["a", "b"].map((body) => ({ body, session: "ana/1" })) });
  await page.goto("/ui/queues/orders/sessions");
  await page.getByRole("link", { name: "ana/1" }).click();
  await page.getByText("Ready: it is delivered to the next receiver").waitFor();
  const held = await api("POST", "queues/orders/sessions/accept", { lock_ms: 3_600_000 });
  await page.getByText("A receiver holds the session for another 59 min").waitFor();
  await button(page, "Break hold").click();
  await button(dialog(page), "Break the hold").click();
  await page.getByText("The session is free").waitFor();
  await page.getByText("Ready: it is delivered to the next receiver").waitFor();
  await assert.rejects(api("POST", "queues/orders/sessions/ana%2F1/renew", { token: held.token }), /lease_lost/);
  await api("POST", "queues/orders/pause");
  await page.getByText("The queue is paused. Resume it to go on.").waitFor();
}

async function rulesAreTestedOnAMessage({ page, api }) {
  await page.goto("/ui/topics");
  await button(page, "Create topic").click();
  await dialog(page).getByLabel("Name", { exact: true }).fill("sales");
  await button(dialog(page), "Create").click();
  await page.getByRole("heading", { name: "sales" }).waitFor();
  await button(page, "Add subscription").click();
  await dialog(page).getByLabel("Name", { exact: true }).fill("large");
  await dialog(page).getByLabel("Which messages").selectOption("sql");
  await dialog(page).getByLabel("Condition", { exact: true }).fill("total >");
  await button(dialog(page), "Add").click();
  await dialog(page).getByRole("alert").waitFor();
  await dialog(page).getByLabel("Condition", { exact: true }).fill("total > 100");
  await button(dialog(page), "Add").click();
  await page.getByText("Subscription large added").waitFor();
  await api("PUT", "topics/sales/subscriptions/all", {});
  await button(page, "Refresh").click();
  const row = (name) => page.getByRole("row", { name: new RegExp(`^${name} `) });
  await row("all").getByText("all messages").waitFor();
  await row("large").getByText("total > 100").waitFor();
  await page.getByLabel(/^Properties/).fill("total=50");
  await button(page, "Test the rules").click();
  await page.getByText("1 of 2 rules match.").waitFor();
  await row("large").getByText("no match").waitFor();
  await row("all").getByText("matches").waitFor();
  await page.getByLabel(/^Properties/).fill("total=500");
  await button(page, "Test the rules").click();
  await page.getByText("2 of 2 rules match.").waitFor();
  await row("large").getByRole("button").click();
  await button(dialog(page), "Delete the rule").click();
  await until("the rule is gone", async () => (await row("large").count()) === 0);
  assert.equal((await api("GET", "topics/sales/rules")).rules.length, 1);
  await button(page, "Delete").first().click();
  await dialog(page).getByRole("textbox").fill("sales");
  await button(dialog(page), "Delete the topic").click();
  await page.getByText("No topics").waitFor();
}

// The invalid condition. Chromium reports every refused request.
rulesAreTestedOnAMessage.expected = [400];

async function theListOfQueuesSortsSearchesAndPages({ page, api }) {
  for (let n = 0; n < 120; n += 1) await api("PUT", `queues/q-${String(n).padStart(3, "0")}`, {});
  await api("POST", "queues/q-077/messages/batch", { messages: [{ body: "x" }, { body: "y" }] });
  await page.goto("/ui/queues");
  const names = page.locator("tbody th a");
  await page.getByText("1–100 of 120").waitFor();
  await button(page, "Next").click();
  await page.getByText("101–120 of 120").waitFor();
  assert.equal(await names.count(), 20);
  await button(page, "Ready").click();
  await until("the sorted list", async () => (await names.first().textContent()) === "q-077");
  assert.match(page.url(), /sort=ready&descending=true$/);
  await page.getByRole("columnheader", { name: "Ready" }).and(page.locator('[aria-sort="descending"]')).waitFor();
  await page.getByLabel("Search queues").fill("*-11*");
  await until("the found queues", async () => (await names.count()) === 10);
  // The address holds everything: a reload and the history show the same.
  await page.reload();
  await until("the same queues", async () => (await names.count()) === 10);
  await names.last().click();
  await page.getByRole("heading", { name: /^q-11\d/ }).waitFor();
  await page.goBack();
  await until("the list again", async () => (await names.count()) === 10);
}

async function theKeyboardSuffices({ page, api }) {
  await api("PUT", "queues/orders", {});
  await page.goto("/ui/queues");
  await page.getByRole("link", { name: "orders" }).waitFor();
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to content");
  await page.getByRole("link", { name: "orders" }).focus();
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "orders" }).waitFor();
  await button(page, "Purge").focus();
  await page.keyboard.press("Enter");
  await dialog(page).waitFor();
  assert.ok(await page.evaluate(() => document.querySelector("dialog").contains(document.activeElement)), "the dialog has the focus");
  await page.keyboard.press("Escape");
  await dialog(page).waitFor({ state: "detached" });
  const plot = page.getByRole("img", { name: /^Messages per second/ });
  await plot.focus();
  await page.keyboard.press("ArrowLeft");
  await page.locator(".plot-tip").first().filter({ hasText: /In / }).waitFor();
}

async function permissionsAreThoseOfTheApi() {
  const broker = await startBroker(binary, { users: [["admin", "secret-1", "--admin"], ["ana", "secret-2", "--grant", "send orders"]] });
  const { page, context, problems } = await openTab(browser, broker.url, { expected: [401, 403] });
  try {
    const basic = `Basic ${Buffer.from("admin:secret-1").toString("base64")}`;
    const admin = client(broker.url, basic);
    await admin("PUT", "queues/orders", {});
    await admin("PUT", "queues/secret", {});
    await page.goto("/ui/queues/orders");
    await page.getByLabel("User name").fill("ana");
    await page.getByLabel("Password", { exact: true }).fill("wrong");
    await button(page, "Sign in").click();
    await page.getByText("This credential is not valid.").waitFor();
    await page.getByLabel("Password", { exact: true }).fill("secret-2");
    await button(page, "Sign in").click();
    await page.getByRole("heading", { name: "orders" }).waitFor();
    await page.locator(".empty.forbidden").waitFor();
    await button(page, "Pause").click();
    await page.locator(".notice.forbidden", { hasText: "Not permitted" }).waitFor();
    assert.equal((await admin("GET", "queues/orders")).paused, false);
    await button(page, "Publish").click();
    await dialog(page).getByLabel("Body").fill("Hello");
    await button(dialog(page), "Publish").click();
    await page.getByText("1 message sent").waitFor();
    await page.getByRole("link", { name: "Queues" }).first().click();
    await page.getByRole("row", { name: /orders/ }).waitFor();
    assert.equal(await page.getByRole("row", { name: /secret/ }).count(), 0);
    await page.getByRole("link", { name: "Audit log" }).click();
    await page.locator(".empty.forbidden").waitFor();

    // The session belongs to this tab, and no cookie exists that another page could use.
    assert.deepEqual(await context.cookies(), []);
    const other = await context.newPage();
    await other.goto(broker.url);
    await other.getByRole("heading", { name: "Sign in to Malote" }).waitFor();
    await other.close();
    await button(page, "Sign out").click();
    await page.getByRole("heading", { name: "Sign in to Malote" }).waitFor();
    assert.equal(await page.evaluate(() => sessionStorage.length), 0);
    assert.deepEqual(problems, []);
  } finally {
    await context.close();
    await broker.stop();
  }
}

async function anotherOriginCanNeitherReadNorChange({ page, context, api, url }) {
  await api("PUT", "queues/orders", {});
  await api("POST", "queues/orders/messages/batch", { messages: [{ body: "private" }] });
  await page.goto("/");
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  const evil = createServer((_, response) => response.writeHead(200, { "content-type": "text/html" }).end("<h1>evil</h1>"));
  await new Promise((done) => evil.listen(0, "127.0.0.1", done));
  const foreign = await context.newPage();
  try {
    await foreign.goto(`http://127.0.0.1:${evil.address().port}/`);
    const results = await foreign.evaluate(async (target) => {
      const attempt = (path, options) =>
        fetch(target + path, options).then(
          async (response) => `${response.type} ${response.status} ${await response.text()}`,
          () => "blocked",
        );
      const simple = { method: "POST", mode: "no-cors", headers: { "content-type": "text/plain" } };
      const frame = document.createElement("iframe");
      frame.src = target;
      document.body.append(frame);
      await new Promise((done) => {
        frame.onload = done;
      });
      let framed;
      try {
        framed = frame.contentDocument ? "readable" : "blocked";
      } catch {
        framed = "blocked";
      }
      const form = document.createElement("form");
      form.method = "post";
      form.enctype = "text/plain";
      form.action = `${target}/api/v1/queues/orders/purge`;
      const sink = document.createElement("iframe");
      sink.name = form.target = "sink";
      document.body.append(sink, form);
      form.submit();
      await new Promise((done) => {
        sink.onload = done;
      });
      return [
        await attempt("/api/v1/overview"),
        await attempt("/api/v1/overview/events"),
        await attempt("/api/v1/queues/orders/messages", { mode: "no-cors" }),
        await attempt("/api/v1/queues/orders/purge", simple),
        await attempt("/api/v1/queues/made?x", { ...simple, method: "POST" }),
        framed,
      ];
    }, url);
    assert.deepEqual(results.slice(0, 2), ["blocked", "blocked"]);
    for (const opaque of results.slice(2, 5)) assert.match(opaque, /^(opaque 0 |blocked)$/);
    assert.equal(results[5], "blocked");
    const { counts } = await api("GET", "queues/orders");
    assert.equal(counts.ready, 1, "the message is still there");
    assert.deepEqual((await api("GET", "queues")).queues.map((queue) => queue.name), ["orders"]);
  } finally {
    await foreign.close();
    evil.close();
  }
}

async function aLostServerIsShownAndFoundAgain({ page, api, problems }) {
  await api("PUT", "queues/orders", {});
  await page.goto("/");
  await page.locator(".live.live").waitFor();
  await page.route("**/overview/events*", (route) => route.abort());
  // The list of queues needs another stream, which fails.
  await page.getByRole("link", { name: "Queues", exact: true }).first().click();
  await page.locator(".live.connecting").waitFor();
  await page.getByText("The server cannot be reached. Values are old; trying again.").waitFor();
  await page.unroute("**/overview/events*");
  await page.locator(".live.live").waitFor();
  await page.getByRole("row", { name: /orders/ }).waitFor();
  // Chromium reports every failed request.
  problems.splice(0, problems.length, ...problems.filter((one) => !one.includes("ERR_FAILED")));
}

const SCREENS = [
  "/",
  "/ui/queues",
  "/ui/queues/payments",
  "/ui/queues/orders/sessions",
  "/ui/queues/emails/scheduled",
  "/ui/queues/payments/dead-letters",
  "/ui/queues/orders/settings",
  "/ui/queues/orders/connect",
  "/ui/queues/orders/sessions/ana",
  "/ui/dead-letters",
  "/ui/topics",
  "/ui/topics/sales",
  "/ui/audit",
];

/** No serious accessibility problem, and nothing wider than the window, on every screen in both themes and widths. */
async function everyScreenIsAccessible({ api, url }) {
  await seed(api);
  for (const [dark, width] of [[false, 1280], [true, 1280], [false, 390], [true, 390]]) {
    const { page, context, problems } = await openTab(browser, url, { dark, width, height: 844 });
    for (const screen of SCREENS) {
      await page.goto(screen);
      await page.locator("h1").waitFor();
      await page.locator(".loading").waitFor({ state: "detached" });
      const first = page.locator(".message-head").first();
      if (screen.includes("payments")) await first.click();
      if (screen === "/ui/dead-letters") await button(page, "Show messages").first().click();
      if (screen === "/ui/queues/payments") await button(page, "Publish").click();
      await checkPage(page, `${screen} ${dark ? "dark" : "light"} ${width}`);
    }
    assert.deepEqual(problems, []);
    await context.close();
  }
}

async function checkPage(page, where) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  const serious = violations.filter((one) => ["serious", "critical"].includes(one.impact));
  const said = serious.map((one) => `${one.id}: ${one.nodes.slice(0, 3).map((node) => node.html).join(" | ")}`);
  assert.deepEqual(said, [], where);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  assert.equal(wide, 0, `${where} is wider than the window`);
}

const TESTS = [
  anEmptyBrokerShowsHowToBegin,
  createPublishWatchFailInspectEditAndResend,
  threeClicksFromTheOverviewToARedrive,
  aRedriveCanBeStopped,
  pausePurgeScheduleAndAudit,
  aSessionSaysWhyItIsBlocked,
  rulesAreTestedOnAMessage,
  theListOfQueuesSortsSearchesAndPages,
  theKeyboardSuffices,
  permissionsAreThoseOfTheApi,
  anotherOriginCanNeitherReadNorChange,
  aLostServerIsShownAndFoundAgain,
  everyScreenIsAccessible,
];

let passed = 0;
let failed = 0;
for (const test of TESTS.filter((one) => !only || one.name === only)) {
  const broker = await startBroker(binary);
  const tab = await openTab(browser, broker.url, { expected: test.expected });
  try {
    await test({ ...tab, broker, url: broker.url, api: client(broker.url) });
    assert.deepEqual(tab.problems, []);
    passed += 1;
    console.log(`ok     ${test.name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED ${test.name}: ${error.stack ?? error}`);
    if (process.env.PICTURES) await tab.page.screenshot({ path: `${process.env.PICTURES}/${test.name}.png`, fullPage: true }).catch(() => {});
  } finally {
    await tab.context.close();
    await broker.stop();
  }
}
await browser.close();
console.log(`${passed} passed, ${failed} failed`);
process.exitCode = failed === 0 ? 0 : 1;

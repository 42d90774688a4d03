// Queues with sessions, backlog, schedules and dead letters, so that screens have something to show.

import { fail } from "./harness.mjs";

const customers = ["ana", "ben", "chen", "dora", "emil", "fay", "gus", "hana"];

const order = (n) => ({
  body: { order: 4100 + n, customer: customers[n % customers.length], total_cents: 1290 + 35 * n, items: [{ sku: "KETTLE-2", amount: 1 + (n % 3) }] },
  session: customers[n % customers.length],
  subject: "order.placed",
  properties: { region: n % 3 ? "eu" : "us", attempt: 1 },
});

export async function seed(api) {
  await api("PUT", "queues/orders", { sessions: "dynamic", failed_max: 5 });
  await api("PUT", "queues/payments", { lock_ms: 120_000 });
  await api("PUT", "queues/emails", {});
  await api("PUT", "queues/invoices", {});
  await api("PUT", "queues/reports", {});
  await api("PUT", "queues/thumbnails", { backlog_warning: 100 });
  await api("PUT", "queues/webhooks%2Fpartner-eu", {});
  await api("POST", "queues/orders/messages/batch", { messages: Array.from({ length: 48 }, (_, n) => order(n)) });
  const held = await api("POST", "queues/orders/sessions/accept", { session: "ana", lock_ms: 3_600_000 });
  await api("POST", "queues/orders/receive", { max: 2, session_token: held.token, lock_ms: 3_600_000 });
  const payment = (n) => ({ body: { payment: 900 + n, order: 4100 + n, amount_cents: 1290 + 35 * n }, properties: { provider: n % 2 ? "nordpay" : "cardhouse" } });
  await api("POST", "queues/payments/messages/batch", { messages: Array.from({ length: 21 }, (_, n) => payment(n)) });
  await fail(api, "payments", 7, "CardDeclined", (n) => `order ${4100 + n}: the card was declined (code 51)`);
  await fail(api, "payments", 3, "Timeout", "nordpay did not answer within 5 s");
  await api("POST", "queues/payments/receive", { max: 4 });
  await api("POST", "queues/webhooks%2Fpartner-eu/messages/batch", { messages: [1, 2].map((n) => ({ body: { event: "shipped", shipment: n } })) });
  await fail(api, "webhooks%2Fpartner-eu", 2, "HTTP 503", "partner-eu.example answered 503: maintenance");
  const mail = (n) => ({ body: `Dear ${customers[n % 8]}, your parcel is on its way.`, content_type: "text/plain", ...(n > 4 ? { at: Date.now() + 3_600_000 * n } : {}) });
  await api("POST", "queues/emails/messages/batch", { messages: Array.from({ length: 9 }, (_, n) => mail(n)) });
  await api("POST", "queues/thumbnails/messages/batch", { messages: Array.from({ length: 140 }, (_, n) => ({ body_base64: Buffer.from([0x89, 0x50, 0x4e, 0x47, n]).toString("base64"), content_type: "image/png" })) });
  await api("POST", "queues/invoices/messages/batch", { messages: [1, 2, 3].map((n) => ({ body: { invoice: n } })) });
  await api("POST", "queues/invoices/pause");
  await api("PUT", "topics/sales", {});
  await api("PUT", "topics/sales/subscriptions/audit", {});
  await api("PUT", "topics/sales/subscriptions/europe", { rules: [{ name: "eu", filter: { pattern: "eu.#" } }] });
  await api("PUT", "topics/sales/subscriptions/large", { rules: [{ name: "large", filter: { sql: "total > 100" }, action: "SET vip = TRUE" }] });
}

/** Keeps messages flowing until the returned function is called. */
export function flow(api) {
  let going = true;
  let n = 0;
  const work = (async () => {
    while (going) {
      const many = 12 + Math.round(8 * Math.sin(n / 7));
      await api("POST", "queues/reports/messages/batch", { messages: Array.from({ length: many }, (_, i) => ({ body: { report: n * 100 + i } })) });
      const { messages } = await api("POST", "queues/reports/receive", { max: many - (n % 5 ? 0 : 2) });
      if (messages.length) await api("POST", "queues/reports/settle", { leases: messages.map((message) => message.lease), outcome: "complete" });
      n += 1;
      await new Promise((done) => setTimeout(done, 250));
    }
  })();
  return async () => {
    going = false;
    await work;
  };
}

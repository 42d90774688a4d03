import assert from "node:assert/strict";
import { test } from "node:test";

import "./page.mjs";

const from = (name) => import(`../../../dashboard/${name}.js`);
const { age, bytes, count, duration, parseDuration, plural, rate, shell, time } = await from("format");
const { hexDump, prettyJson, preview, textOf } = await from("body");
const { address, match, queueAddress } = await from("router");
const { parser } = await from("live");
const { axis, nearest, segments, timeAxis } = await from("plot");
const { reach, snippets } = await from("snippets");
const { asCommand, asCurl, messageOf, propertiesOf } = await from("screens/publish");
const { settingText } = await from("screens/queue-settings");
const { sessionState } = await from("screens/queue-sessions");
const { contains, propertyText } = await from("message");
const { path, withQuery } = await from("api");

test("numbers, sizes and durations", () => {
  assert.deepEqual([count(1234567), count(undefined), plural(1, "queue"), plural(1200, "queue")], ["1,234,567", "0", "1 queue", "1,200 queues"]);
  assert.deepEqual([0, 0.001, 0.256, 1, 9.96, 10.4, 12345.6].map(rate), ["0", "<0.01", "0.26", "1", "10", "10", "12,346"]);
  assert.deepEqual([0, 1023, 1024, 1536, 123_456_789].map(bytes), ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "118 MiB"]);
  assert.deepEqual([null, 12, 61_000, 3_600_000, 90_061_000].map(duration), ["–", "12 ms", "1 min 1 s", "1 h", "1 d 1 h"]);
  assert.equal(age(999), "now");
  assert.equal(time(0), "–");
  assert.match(time(1_700_000_000_000), /^2023-11-1\d \d\d:\d\d:\d\d$/);
});

test("typed durations", () => {
  assert.deepEqual(["30s", "5 min", "2h", "1500ms", "7", "1.5m", " 1d "].map(parseDuration), [30_000, 300_000, 7_200_000, 1500, 7000, 90_000, 86_400_000]);
  for (const bad of ["", "soon", "-1s", "1 week"]) assert.equal(parseDuration(bad), undefined, bad);
});

test("shell words", () => {
  assert.deepEqual(["a/b.c", "a b", "it's", "", "$x"].map(shell), ["a/b.c", "'a b'", "'it'\\''s'", "''", "'$x'"]);
});

test("bodies", () => {
  assert.equal(textOf({ body: "a" }), "a");
  assert.equal(textOf({ body: { a: 1 } }), '{"a":1}');
  assert.equal(textOf({ body_base64: "/wA=" }), undefined);
  assert.equal(textOf({}), "");
  assert.equal(prettyJson('{"a":[1]}'), '{\n  "a": [\n    1\n  ]\n}');
  assert.equal(prettyJson("plain"), undefined);
  assert.equal(prettyJson('{"a":12345678901234567890}'), undefined, "it would lose digits");
  assert.equal(hexDump(Uint8Array.of(65, 0, 255)), `000000  41 00 ff${" ".repeat(39)}  A··`);
  assert.match(hexDump(new Uint8Array(5000)), /904 more bytes$/);
  assert.equal(preview({ body: "a\n  b" }), "a b");
  assert.equal(preview({ body_base64: "/wA=" }), "2 bytes");
});

test("addresses lead to their screens", () => {
  assert.deepEqual(match("/"), { screen: "overview", params: {} });
  assert.deepEqual(match("/ui/queues/"), { screen: "queues", params: {} });
  const odd = "a/b c%";
  assert.deepEqual(match(queueAddress(odd)), { screen: "queue", params: { queue: odd } });
  assert.deepEqual(match(queueAddress(odd, "settings")), { screen: "queue", params: { queue: odd, tab: "settings" } });
  const session = address(["queues", odd, "sessions", "s/1"]);
  assert.deepEqual(match(session), { screen: "session", params: { queue: odd, session: "s/1" } });
  assert.equal(match("/ui/nothing/else"), undefined);
  assert.equal(match("/ui/queues/%zz"), undefined);
  assert.equal(address(["queues"], { search: "a&b", sort: "", offset: undefined }), "/ui/queues?search=a%26b");
  assert.equal(withQuery(path("queues", "a/b", "messages"), { max: 5, session: "" }), "/api/v1/queues/a%2Fb/messages?max=5");
});

test("events are read across any split", () => {
  const stream = 'event: overview\ndata: {"at":1}\n\n:\n\nevent: ended\ndata: {}\n\n';
  for (let size = 1; size <= stream.length; size += 1) {
    const seen = [];
    const feed = parser((name, data) => seen.push([name, data]));
    for (let at = 0; at < stream.length; at += size) feed(stream.slice(at, at + size));
    assert.deepEqual(seen, [["overview", '{"at":1}'], ["ended", "{}"]]);
  }
});

test("axes are round and cover the values", () => {
  assert.deepEqual(axis(0), [0, 1]);
  assert.deepEqual(axis(10), [0, 2.5, 5, 7.5, 10]);
  for (const max of [0.003, 1, 7, 12, 99, 101, 54_321]) {
    const ticks = axis(max);
    assert.ok(ticks[ticks.length - 1] >= max && ticks.length <= 6, `${max}: ${ticks}`);
  }
  assert.deepEqual(timeAxis(0, 600_000), [0, 120_000, 240_000, 360_000, 480_000, 600_000]);
});

test("gaps divide a series", () => {
  assert.deepEqual(segments([0, 10, 20, 100, 110, 120], [1, 2, null, 3, 4, 5], 45), [[0, 1], [3, 4, 5]]);
  assert.deepEqual(segments([0, 10, 100], [1, 2, 3], 45), [[0, 1], [2]]);
  assert.deepEqual(segments([], [], 45), []);
  assert.deepEqual([nearest([], 5), nearest([0, 10, 20], 14), nearest([0, 10, 20], 99)], [-1, 1, 2]);
});

const endpoints = [
  { protocol: "http", address: "0.0.0.0:8080", tls: false },
  { protocol: "sqs", address: "127.0.0.1:9324", tls: false },
  { protocol: "amqp", address: "[::]:5672", tls: true },
];

test("snippets have the addresses that the reader can use", () => {
  assert.deepEqual(reach({ endpoints }, "broker.example", "amqp"), { at: "broker.example:5672", tls: true });
  assert.deepEqual(reach({ endpoints }, "127.0.0.1", "sqs"), { at: "127.0.0.1:9324", tls: false });
  assert.equal(reach({ endpoints }, "x", "amqps"), undefined);
  const location = { origin: "http://127.0.0.1:8080", hostname: "127.0.0.1" };
  const groups = snippets({ open: true, endpoints }, location, { name: "a/b", with_sessions: true, exists: false });
  assert.deepEqual(groups.map((group) => group.name), ["HTTP", "Terminal", "Amazon SQS", "Azure Service Bus", "RabbitMQ"]);
  const all = groups.flatMap((group) => group.languages.map((language) => language.code)).join("\n");
  assert.match(all, /queues\/a%2Fb\/messages\?create=true&session=customer-1/);
  assert.match(all, /endpoint_url="http:\/\/127\.0\.0\.1:9324"/);
  assert.match(all, /amqps:\/\/guest:guest@127\.0\.0\.1:5672/);
  const closed = snippets({ open: false, endpoints: [] }, location, { name: "q", with_sessions: false, exists: true });
  assert.equal(closed.length, 2);
  assert.match(closed[0].languages[0].code, /curl -u NAME/);
});

test("a draft becomes a message, a request and a command", () => {
  const fields = { body: "it's", type: "", session: "s 1", id: "", dedup: "", delay: "30s", ttl: "", priority: "4", properties: "region=eu\ntotal=12.5\nvip=true\nzip=007" };
  const message = messageOf(fields);
  assert.deepEqual(message, { body: "it's", session: "s 1", delay_ms: 30_000, priority: 4, properties: { region: "eu", total: 12.5, vip: true, zip: "007" } });
  assert.equal(asCommand("q", message, 2), "malote send q --session 's 1' --delay 30000ms --priority 4 --count 2 --prop region=eu --prop total:=12.5 --prop vip:=true --prop zip=007 'it'\\''s'");
  assert.match(asCurl("http://h:1", "a/b", { body: "x" }, false), /^curl -u NAME --json '\{"messages":\[\{"body":"x"\}\]\}' http:\/\/h:1\/api\/v1\/queues\/a%2Fb\/messages\/batch$/);
  assert.throws(() => messageOf({ ...fields, delay: "soon" }), /Delay/);
  assert.throws(() => propertiesOf("=x"), /name=value/);
});

test("settings, sessions and properties in words", () => {
  assert.deepEqual(
    [settingText("lock_ms", 30_000), settingText("failed_max", null), settingText("dead_letter", { queue: "q" }), settingText("dedup", { window_ms: 60_000, per_session: false }), settingText("sessions", ["a", "b"]), settingText("ttl_ms", null)],
    ["30 s", "no limit", "queue q", "window 1 min, per session false", "2 fixed: a, b", "never"],
  );
  assert.equal(sessionState({ held_until: 5000, messages: 1, locked: 1 }, 2000), "held for 3 s");
  assert.equal(sessionState({ delayed_until: 5000, messages: 1, locked: 0 }, 2000), "waits 3 s to retry");
  assert.equal(sessionState({ messages: 0, locked: 0 }, 0), "no messages");
  assert.deepEqual([propertyText("a"), propertyText(1), propertyText({ $type: "i32", value: 7 })], ["a", "1", "7 (i32)"]);
  const message = { body: "Hello", id: "m-1", properties: { region: "EU" }, dead_letter: { reason: "Timeout", text: "late" } };
  for (const text of ["hell", "m-1", "region=eu", "TIME", "late", ""]) assert.ok(contains(message, text), text);
  assert.ok(!contains(message, "absent"));
});

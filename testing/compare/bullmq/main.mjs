// Measures how fast a BullMQ worker with an empty processor drains a queue, on a Redis that syncs every write.
//
//     node main.mjs PACKAGES PORT PID JOBS CONCURRENCY,…
//
// PACKAGES is the folder with npm's packages, PID the process id of Redis. The queue is filled first. The measurement
// lasts from the worker's start to the completion of the last job. The output is like that of
// `cargo xtask bench worker --json`.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const [packages, port, pid, jobs, concurrencies] = process.argv.slice(2);
const { Queue, Worker } = createRequire(join(packages, "package.json"))("bullmq");
const connection = { host: "127.0.0.1", port: Number(port), maxRetriesPerRequest: null };
const payload = { body: "x".repeat(256) };
const BULK = 1000;

/** CPU time of Redis so far, in µs: user and system time, in hundredths of a second. */
function redisCpu() {
  const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  const words = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return (Number(words[11]) + Number(words[12])) * 10_000;
}

/** CPU time of this process so far, in µs. */
function ownCpu() {
  const { user, system } = process.cpuUsage();
  return user + system;
}

async function measure(count, concurrency) {
  const name = `bench-${concurrency}`;
  const queue = new Queue(name, { connection });
  // A completed job is removed, like a message.
  const opts = { removeOnComplete: true };
  for (let first = 0; first < count; first += BULK) {
    const some = Math.min(BULK, count - first);
    await queue.addBulk(Array.from({ length: some }, () => ({ name: "job", data: payload, opts })));
  }
  const worker = new Worker(name, async () => {}, { connection, concurrency, autorun: false });
  let done = 0;
  const all = new Promise((resolve, reject) => {
    worker.on("completed", () => {
      done += 1;
      if (done === count) resolve();
    });
    worker.on("failed", (_, error) => reject(error));
    worker.on("error", reject);
  });
  const before = { own: ownCpu(), redis: redisCpu(), at: performance.now() };
  worker.run();
  await all;
  const seconds = (performance.now() - before.at) / 1000;
  const [own, redis] = [(ownCpu() - before.own) / count, (redisCpu() - before.redis) / count];
  await worker.close();
  await queue.obliterate({ force: true });
  await queue.close();
  const what = `${concurrency} at once`;
  return { what, per_s: count / seconds, cpu_us: own + redis, worker_cpu_us: own, server_cpu_us: redis };
}

const results = [];
for (const concurrency of concurrencies.split(",").map(Number)) {
  results.push(await measure(Number(jobs), concurrency));
}
console.log(JSON.stringify({ results }));

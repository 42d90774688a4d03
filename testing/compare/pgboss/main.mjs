// Measures how fast graphile-worker and pg-boss with empty handlers drain a queue, on a PostgreSQL that syncs every
// commit.
//
//     node main.mjs PACKAGES URL JOBS CONCURRENCY,…
//
// PACKAGES is the folder with npm's packages. The queue is filled first. The measurement lasts from the worker's
// start until the database has the last completion. Each library uses batches where it can. The output is like that
// of `cargo xtask bench worker --json`.
import { createRequire } from "node:module";
import { join } from "node:path";

const [packages, url, jobs, concurrencies] = process.argv.slice(2);
const require = createRequire(join(packages, "package.json"));
const { Pool } = require("pg");
const graphile = require("graphile-worker");
const PgBoss = require("pg-boss");
const payload = { body: "x".repeat(256) };
const BULK = 1000;
/** Jobs that graphile-worker prefetches, and that pg-boss fetches in one batch. */
const AHEAD = 500;
/** Concurrent fetches of pg-boss. */
const LOOPS = 4;

/** CPU time of this process so far, in µs. */
function ownCpu() {
  const { user, system } = process.cpuUsage();
  return user + system;
}

async function measured(what, count, work) {
  const before = { own: ownCpu(), at: performance.now() };
  await work();
  const seconds = (performance.now() - before.at) / 1000;
  const own = (ownCpu() - before.own) / count;
  return { what, per_s: count / seconds, cpu_us: own, worker_cpu_us: own };
}

async function ofGraphile(count, concurrency) {
  const pool = new Pool({ connectionString: url, max: 10 });
  pool.on("error", () => {});
  const logger = new graphile.Logger(() => () => {});
  const preset = { worker: { localQueue: { size: AHEAD }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } };
  const utils = await graphile.makeWorkerUtils({ pgPool: pool, logger });
  await utils.migrate();
  const add = `select graphile_worker.add_jobs(array(
    select row('empty', $1::json, null, null, null, null, null, null)::graphile_worker.job_spec from generate_series(1, $2::int)))`;
  for (let first = 0; first < count; first += BULK) {
    await pool.query(add, [JSON.stringify(payload), Math.min(BULK, count - first)]);
  }
  const result = await measured(`graphile-worker, ${concurrency} at once`, count, async () => {
    let begun = 0;
    let begunAll;
    const all = new Promise((resolve) => (begunAll = resolve));
    const empty = async () => {
      begun += 1;
      if (begun === count) begunAll();
    };
    const runner = await graphile.run({ pgPool: pool, concurrency, taskList: { empty }, noHandleSignals: true, logger, preset });
    await all;
    // Completions are written in batches; it stops once all are written.
    await runner.stop();
  });
  const left = await pool.query("select count(*)::int as n from graphile_worker.jobs");
  if (left.rows[0].n !== 0) throw new Error(`${left.rows[0].n} jobs of graphile-worker are left`);
  await utils.release();
  await pool.end();
  return result;
}

async function ofPgBoss(count, concurrency) {
  const boss = new PgBoss({ connectionString: url, max: 10, supervise: false, schedule: false });
  boss.on("error", (error) => {
    throw error;
  });
  await boss.start();
  const queue = `bench-${concurrency}`;
  await boss.createQueue(queue);
  for (let first = 0; first < count; first += BULK) {
    const some = Math.min(BULK, count - first);
    await boss.insert(Array.from({ length: some }, () => ({ name: queue, data: payload })));
  }
  const batchSize = Math.min(AHEAD, concurrency);
  let done = 0;
  const result = await measured(`pg-boss, ${concurrency} at once`, count, async () => {
    const loop = async () => {
      while (done < count) {
        const some = await boss.fetch(queue, { batchSize });
        if (!some?.length) continue;
        await Promise.all(some.map(async () => {}));
        await boss.complete(queue, some.map((job) => job.id));
        done += some.length;
      }
    };
    await Promise.all(Array.from({ length: LOOPS }, loop));
  });
  await boss.stop({ graceful: false });
  return result;
}

const results = [];
for (const concurrency of concurrencies.split(",").map(Number)) {
  results.push(await ofGraphile(Number(jobs), concurrency));
  // It is much slower, so fewer jobs are enough.
  results.push(await ofPgBoss(Math.ceil(Number(jobs) / 5), concurrency));
}
console.log(JSON.stringify({ results }));
process.exit(0);

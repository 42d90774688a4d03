// The built binary on ports that the system chooses, with data in a temporary directory.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

export function start(binary) {
  const data = mkdtempSync(join(tmpdir(), "malote-js-"));
  const ports = ["--http", "127.0.0.1:0", "--sqs", "127.0.0.1:0", "--amqp", "off", "--servicebus-admin", "off"];
  const args = ["serve", "--data", data, ...ports];
  const child = spawn(binary, args, { stdio: ["ignore", "pipe", "ignore"] });
  const stop = async () => {
    child.removeAllListeners("exit");
    child.kill();
    await new Promise((done) => child.on("exit", done));
    rmSync(data, { recursive: true, force: true });
  };
  return new Promise((done, failed) => {
    let said = "";
    child.on("exit", (code) => failed(new Error(`the broker ended with ${code}: ${said}`)));
    child.stdout.on("data", (bytes) => {
      said += bytes;
      const found = said.match(/SQS\s+(http:\/\/[0-9.:]+)\s/);
      if (found) done({ endpoint: found[1], stop });
    });
  });
}

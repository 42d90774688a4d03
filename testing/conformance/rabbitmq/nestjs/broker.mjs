// Has the broker killed with SIGKILL, and waits until it is started again.

import { createInterface } from "node:readline";

let lines;

export async function kill_broker() {
  lines ??= createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  console.log("kill the broker");
  const { value } = await lines.next();
  if (value !== "the broker started") throw new Error("the broker did not start");
}

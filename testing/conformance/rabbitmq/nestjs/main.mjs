// RabbitMQ's behaviour as NestJS and a plain worker see it. Usage: main.mjs URL FOLDER_OF_PACKAGES

import "./transport.mjs";
import "./worker.mjs";
import { main } from "../javascript/harness.mjs";

await main();

// RabbitMQ's behaviour as amqplib sees it. Usage: main.mjs URL FOLDER_OF_PACKAGES

import "./topology.mjs";
import "./messages.mjs";
import "./programs.mjs";
import { main } from "./harness.mjs";

await main();

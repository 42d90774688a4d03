// NestJS without its compiler: decorators are functions, and are called as such.

import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { URL_OF_BROKER } from "../javascript/harness.mjs";

const packages = join(resolve(process.argv[3]), "node_modules");
const require = createRequire(join(packages, "x.js"));
const load = (name) => import(pathToFileURL(join(packages, name, "index.js")).href);

require("reflect-metadata");
const { Controller, Module } = await load("@nestjs/common");
const { NestFactory } = await load("@nestjs/core");
export const nest = await load("@nestjs/microservices");
const rxjs = require("rxjs");

const { ClientProxyFactory, Ctx, EventPattern, MessagePattern, Payload, Transport } = nest;
const connection = { urls: [URL_OF_BROKER], socketOptions: { reconnectTimeInSeconds: 1, heartbeatIntervalInSeconds: 5 } };

// A microservice with these handlers, each called with the payload and the context. Requests have `requests`, events `events`.
export async function serve({ requests = {}, events = {} }, options) {
  class Handlers {}
  const add = (decorator, pattern, handler, name) => {
    Handlers.prototype[name] = handler;
    Payload()(Handlers.prototype, name, 0);
    Ctx()(Handlers.prototype, name, 1);
    decorator(pattern)(Handlers.prototype, name, Object.getOwnPropertyDescriptor(Handlers.prototype, name));
  };
  Object.entries(requests).forEach(([pattern, handler], index) => add(MessagePattern, pattern, handler, `request${index}`));
  Object.entries(events).forEach(([pattern, handler], index) => add(EventPattern, pattern, handler, `event${index}`));
  Controller()(Handlers);
  class Application {}
  Module({ controllers: [Handlers] })(Application);
  const service = await NestFactory.createMicroservice(Application, {
    transport: Transport.RMQ,
    logger: false,
    options: { ...connection, ...options },
  });
  await service.listen();
  return service;
}

// A client that is connected.
export async function client(options) {
  const made = ClientProxyFactory.create({ transport: Transport.RMQ, options: { ...connection, ...options } });
  made.logger.error = () => {};
  made.logger.log = () => {};
  await made.connect();
  return made;
}

export const ask = (proxy, pattern, data) => rxjs.firstValueFrom(proxy.send(pattern, data));
export const tell = (proxy, pattern, data) => rxjs.lastValueFrom(proxy.emit(pattern, data), { defaultValue: undefined });

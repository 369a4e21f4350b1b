// A client for benchmarks/failovers: node failovers.js JSON. The JSON has the library (ioredis or redis), and
// host and port with more options, or sentinels and name. With a channel it subscribes, and prints a line for
// each message and each time the connection ends or begins. Else it reads lines, each with a JSON array of
// commands, sends them as one pipeline, and prints one JSON object: {replies: [...]}, or {error: KIND}.
// Nothing is sent twice.
"use strict";
const readline = require("readline");

const { library, host, port, sentinels, name, channel, options } = JSON.parse(process.argv[2]);
const PAUSE = 20; // milliseconds before it connects again
console.log = () => {}; // node-redis logs there; standard output is for answers
const say = (text) => process.stdout.write(`${text}\n`);
const hear = () => say("heard");

async function ioredis() {
  const where = sentinels
    ? { sentinels, name, failoverDetector: true, sentinelRetryStrategy: () => PAUSE }
    : { host, port };
  const client = new (require("ioredis"))({
    ...where,
    retryStrategy: () => PAUSE,
    maxRetriesPerRequest: 0,
    enableOfflineQueue: false,
    autoResendUnfulfilledCommands: false,
  });
  client.on("error", () => {}); // of the connection; those of commands are answers
  await new Promise((resolve) => client.once("ready", resolve));
  if (channel) {
    for (const event of ["message", "close", "ready"]) client.on(event, hear);
    await client.subscribe(channel);
  }
  return ([command, ...words]) => client.call(command, ...words);
}

async function nodeRedis() {
  const socket = { reconnectStrategy: PAUSE };
  const { createClient, createSentinel } = require("redis");
  const client = sentinels
    ? createSentinel({
        name,
        sentinelRootNodes: sentinels,
        maxCommandRediscovers: 0,
        nodeClientOptions: { socket, disableOfflineQueue: true, RESP: 3 },
        RESP: 3,
      })
    : createClient({ socket: { ...socket, host, port }, disableOfflineQueue: true, RESP: 3, ...options });
  client.on("error", () => {});
  await client.connect();
  if (channel) {
    for (const event of ["error", "ready"]) client.on(event, hear);
    await client.subscribe(channel, hear);
  }
  return (command) => (sentinels ? client.sendCommand(false, command) : client.sendCommand(command));
}

function kindOf(error) {
  const name = error.constructor.name;
  if (["ReplyError", "SimpleError", "BlobError"].includes(name)) return error.message.split(" ")[0];
  return name === "Error" ? error.message.split(" ").slice(0, 3).join(" ") : name;
}

async function answer(send, commands) {
  const outcomes = await Promise.allSettled(commands.map(send));
  const failed = outcomes.find(({ status }) => status === "rejected");
  return failed ? { error: kindOf(failed.reason) } : { replies: outcomes.map(({ value }) => value) };
}

(library === "ioredis" ? ioredis : nodeRedis)().then(
  (send) => {
    if (channel) return;
    const lines = readline.createInterface({ input: process.stdin });
    lines.on("line", (line) => {
      answer(send, JSON.parse(line)).then((found) => say(JSON.stringify(found)));
    });
    lines.on("close", () => process.exit(0));
  },
  () => process.exit(1),
);

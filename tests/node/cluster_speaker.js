// A client with its default settings, plain or for clusters: node cluster_speaker.js JSON. The JSON has the
// library (ioredis or redis), ports, whether these are nodes of a cluster, and options. It reads lines, each with
// a JSON object {pipeline: COMMANDS} or {transaction: COMMANDS}, sends the commands at once, and prints one JSON
// array: each reply, or {error: [KIND, TEXT]}.
"use strict";
const readline = require("readline");

const { library, ports, cluster, options } = JSON.parse(process.argv[2]);
console.log = () => {}; // node-redis logs there; standard output is for answers
const addresses = ports.map((port) => ({ host: "127.0.0.1", port }));

async function ioredis() {
  const Redis = require("ioredis");
  const client = cluster ? new Redis.Cluster(addresses) : new Redis(addresses[0]);
  client.on("error", () => {}); // of connections; those of commands are answers
  return {
    send: ([name, ...words]) => client[name.toLowerCase()](...words),
    async transact(commands) {
      const rows = await client.multi(commands.map(([name, ...words]) => [name.toLowerCase(), ...words])).exec();
      return rows.map(([error, reply]) => (error ? failure(error) : reply));
    },
  };
}

async function nodeRedis() {
  const { createClient, createCluster } = require("redis");
  const rootNodes = ports.map((port) => ({ url: `redis://127.0.0.1:${port}` }));
  const client = cluster
    ? createCluster({ rootNodes, ...options })
    : createClient({ socket: addresses[0], ...options });
  client.on("error", () => {});
  await client.connect();
  const send = (command) => client[command[0].toLowerCase()](...command.slice(1));
  return {
    send,
    transact(commands) {
      const multi = client.multi();
      for (const [name, ...words] of commands) multi[name.toLowerCase()](...words);
      return multi.exec();
    },
  };
}

function failure(error) {
  const name = error.constructor.name;
  const isReply = ["ReplyError", "SimpleError", "BlobError"].includes(name);
  const words = error.message.split(" ");
  const kind = isReply ? words[0] : name === "Error" ? error.code || words.slice(0, 3).join(" ") : name;
  return { error: [kind, error.message] };
}

async function answer(client, { pipeline, transaction }) {
  if (pipeline) {
    const outcomes = await Promise.allSettled(pipeline.map(client.send));
    return outcomes.map(({ value, reason }) => (reason ? failure(reason) : value));
  }
  try {
    return await client.transact(transaction);
  } catch (error) {
    return transaction.map(() => failure(error));
  }
}

(library === "ioredis" ? ioredis : nodeRedis)().then((client) => {
  const lines = readline.createInterface({ input: process.stdin });
  lines.on("line", (line) => {
    answer(client, JSON.parse(line)).then((found) => process.stdout.write(`${JSON.stringify(found)}\n`));
  });
  lines.on("close", () => process.exit(0));
});

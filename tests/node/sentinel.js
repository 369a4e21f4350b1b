// A client with its default settings, which asks a Sentinel for its primary, and sets a key for each line on
// standard input: node sentinel.js ioredis|redis NAME KEY HOST:PORT... It prints the address of each
// primary that it connects to, and a line for each key: OK, or the error that the application would get.
"use strict";
const readline = require("readline");

const [library, name, key, ...addresses] = process.argv.slice(2);
const sentinels = addresses.map((address) => {
  const [host, port] = address.split(":");
  return { host, port: Number(port) };
});

async function connected() {
  if (library === "ioredis") {
    const client = new (require("ioredis"))({ sentinels, name, failoverDetector: true, updateSentinels: true });
    client.on("error", () => {}); // of the connection; those of commands are printed
    await client.set(key, "0");
    console.log(`${client.stream.remoteAddress}:${client.stream.remotePort}`);
    return client;
  }
  const client = require("redis").createSentinel({ name, sentinelRootNodes: sentinels });
  client.on("error", () => {});
  client.on("topology-change", ({ type, node }) => {
    if (type === "MASTER_CHANGE") console.log(`${node.host}:${node.port}`);
  });
  await client.connect();
  await client.set(key, "0");
  return client;
}

connected().then((client) => {
  const lines = readline.createInterface({ input: process.stdin });
  lines.on("line", (value) => {
    client.set(key, value).then(console.log, (error) => console.log(String(error)));
  });
  lines.on("close", () => process.exit(0));
});

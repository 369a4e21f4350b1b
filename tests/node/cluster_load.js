// A cluster client with its default settings, which writes rising values to keys and reads each back, again and
// again: node cluster_load.js ioredis|redis|redis3 HOST:PORT KEY… (redis3: node-redis with RESP3). It prints a
// line after the first round. When standard input ends it makes one more, and prints one JSON object: how many
// rounds it made, what it read that it had not written, and the errors that an application would get, by text.
"use strict";

const [library, address, ...keys] = process.argv.slice(2);
const [host, port] = address.split(":");

async function connected() {
  if (library === "ioredis") {
    const cluster = new (require("ioredis").Cluster)([{ host, port: Number(port) }]);
    cluster.on("error", () => {}); // of connections; those of commands are counted
    return cluster;
  }
  const options = { rootNodes: [{ url: `redis://${address}` }] };
  if (library === "redis3") options.RESP = 3;
  const cluster = require("redis").createCluster(options);
  cluster.on("error", () => {});
  await cluster.connect();
  return cluster;
}

async function main() {
  const cluster = await connected();
  const seen = { rounds: 0, wrong: [], errors: {} };
  let ends = false;
  process.stdin.resume().on("end", () => (ends = true));
  for (let isLast = false; !isLast; ) {
    isLast = ends;
    for (const key of keys) {
      const value = String(seen.rounds);
      try {
        await cluster.set(key, value);
        const got = await cluster.get(key);
        if (got !== value) seen.wrong.push(`${key}: ${got} and not ${value}`);
      } catch (error) {
        seen.errors[error.message] = (seen.errors[error.message] || 0) + 1;
      }
    }
    seen.rounds += 1;
    if (seen.rounds === 1) console.log("begun");
    await new Promise((done) => setTimeout(done, 5));
  }
  console.log(JSON.stringify(seen));
  process.exit(0);
}

main();

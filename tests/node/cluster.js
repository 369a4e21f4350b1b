// Writes keys with ioredis' client for clusters: node cluster.js HOST:PORT KEY… What fails is left out.
"use strict";
const Redis = require("ioredis");

const [address, ...keys] = process.argv.slice(2);
const [host, port] = address.split(":");
const cluster = new Redis.Cluster([{ host, port: Number(port) }], {
  clusterRetryStrategy: (times) => (times > 3 ? null : 50),
  redisOptions: { maxRetriesPerRequest: 1 },
});
cluster.on("error", () => {});
Promise.allSettled(keys.map((key) => cluster.set(key, "x"))).then(() => cluster.disconnect());

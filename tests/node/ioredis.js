// ioredis with its default settings: connect, set and get, a pipeline, MULTI, Lua, an error, quit.
"use strict";

const Redis = require("ioredis");
const { SCRIPT, errorOf, main } = require("./scenario");

main(async (host, port, key) => {
  const client = new Redis(port, host);
  // Without a listener ioredis prints what goes wrong on the connection; here it fails the scenario.
  client.on("error", (error) => {
    throw error;
  });
  const seen = {};
  seen.set = await client.set(key("a"), "1");
  seen.get = await client.get(key("a"));
  seen.missing = await client.get(key("missing"));
  seen.binary = await client.getBuffer(key("a")).then((value) => value.toString("hex"));
  const piped = await client.pipeline().incr(key("a")).lpush(key("a"), "x").get(key("a")).exec();
  seen.pipeline = piped.map(([error, result]) => (error ? error.message : result));
  const queued = await client.multi().incr(key("a")).set(key("b"), "ü\r\n").get(key("b")).exec();
  seen.multi = queued.map(([, result]) => result);
  seen.eval = await client.eval(SCRIPT, 1, key("b"), "argument");
  seen.hash = await client.hset(key("h"), { f: "1", g: "2" }).then(() => client.hgetall(key("h")));
  seen.error = await errorOf(client.lpush(key("a"), "x"));
  seen.del = await client.del(key("a"), key("b"), key("h"));
  seen.quit = await client.quit();
  return seen;
});

// node-redis with its default settings: connect, set and get, a pipeline, MULTI, Lua, an error, quit.
"use strict";

const { createClient } = require("redis");
const { SCRIPT, errorOf, main } = require("./scenario");

main(async (host, port, key) => {
  const client = createClient({ url: `redis://${host}:${port}` });
  client.on("error", (error) => {
    throw error;
  });
  await client.connect();
  const seen = {};
  seen.set = await client.set(key("a"), "1");
  seen.get = await client.get(key("a"));
  seen.missing = await client.get(key("missing"));
  // Commands of one turn of the event loop go out as one pipeline.
  const piped = await Promise.allSettled([
    client.incr(key("a")),
    client.lPush(key("a"), "x"),
    client.get(key("a")),
  ]);
  seen.pipeline = piped.map(({ reason, value }) => (reason ? reason.message : value));
  seen.multi = await client.multi().incr(key("a")).set(key("b"), "ü\r\n").get(key("b")).exec();
  seen.eval = await client.eval(SCRIPT, { keys: [key("b")], arguments: ["argument"] });
  seen.hash = await client.hSet(key("h"), { f: "1", g: "2" }).then(() => client.hGetAll(key("h")));
  seen.error = await errorOf(client.lPush(key("a"), "x"));
  seen.del = await client.del([key("a"), key("b"), key("h")]);
  seen.ping = await client.ping();
  await client.close();
  return seen;
});

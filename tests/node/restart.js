// A client with its default settings, which sets a key for each line on standard input: node restart.js
// ioredis|redis HOST:PORT KEY. It prints a line for each: OK, or the error that the application would get. When it
// first notices that its connection has ended, it prints "reconnecting".
"use strict";
const readline = require("readline");

const [library, address, key] = process.argv.slice(2);
const [host, port] = address.split(":");

async function connected() {
  if (library === "ioredis") {
    const client = new (require("ioredis"))({ host, port: Number(port) });
    client.on("error", () => {}); // of the connection; those of commands are printed
    await client.set(key, "0");
    return client;
  }
  const client = require("redis").createClient({ url: `redis://${address}` });
  client.on("error", () => {});
  await client.connect();
  await client.set(key, "0");
  return client;
}

connected().then((client) => {
  client.once("reconnecting", () => console.log("reconnecting"));
  console.log("connected");
  const lines = readline.createInterface({ input: process.stdin });
  lines.on("line", (value) => {
    client.set(key, value).then(console.log, (error) => console.log(String(error)));
  });
  lines.on("close", () => process.exit(0));
});

// What both clients' scripts share: the arguments, and one JSON object on stdout.
"use strict";

const SCRIPT = "return {KEYS[1], ARGV[1], redis.call('GET', KEYS[1])}";

// Usage: node SCRIPT.js HOST:PORT PREFIX. Every key that a scenario touches starts with PREFIX.
async function main(scenario) {
  const [address, prefix] = process.argv.slice(2);
  const colon = address.lastIndexOf(":");
  const host = address.slice(0, colon);
  const port = Number(address.slice(colon + 1));
  console.log(JSON.stringify(await scenario(host, port, (name) => prefix + name)));
}

// Returns the message of the error that a promise ends with, or null.
async function errorOf(promise) {
  try {
    await promise;
    return null;
  } catch (error) {
    return error.message;
  }
}

module.exports = { SCRIPT, errorOf, main };

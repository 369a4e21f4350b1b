// Payments: takes the money for each order, with ioredis.
//
// Release 1 also marks the order as paid: it writes a key of another service. Release 2 only says that it was paid.
"use strict";

const crypto = require("node:crypto");
const { parseArgs } = require("node:util");
const Redis = require("ioredis");

const DAY = 86_400;
const WAIT = 20_000; // milliseconds for another service

const { values: given } = parseArgs({
  options: {
    url: { type: "string" },
    orders: { type: "string", default: "20" },
    seed: { type: "string", default: "1" },
    release: { type: "string", default: "1" },
  },
});

function expect(what, got, wanted) {
  if (got !== wanted) throw new Error(`${what} answered ${JSON.stringify(got)}, not ${JSON.stringify(wanted)}`);
}

async function serve(shop) {
  await shop.xgroup("CREATE", "shop:events:orders", "payments", "0", "MKSTREAM").catch((error) => {
    if (!error.message.includes("BUSYGROUP")) throw error;
  });
  for (let number = 0; number < Number(given.orders); number++) {
    const events = await shop.xreadgroup(
      ...["GROUP", "payments", "payments-1", "COUNT", "1", "BLOCK", WAIT, "STREAMS", "shop:events:orders", ">"],
    );
    if (events === null) throw new Error("XREADGROUP: no order came");
    const [id, fields] = events[0][1][0];
    await pay(shop, fields[fields.indexOf("order") + 1], fields[fields.indexOf("total_cents") + 1]);
    expect("XACK", await shop.xack("shop:events:orders", "payments", id), 1);
  }
}

async function pay(shop, order, cents) {
  const payment = idOf(`payment ${order}`);
  const details = { order, cents, provider: "cardly", state: "captured" };
  expect("HSET of the payment", await shop.hset(`shop:payment:${payment}`, details), 4);
  // The provider calls back at least once, and each call counts once.
  const call = `shop:webhook:${idOf(`webhook ${order}`)}`;
  expect("SET NX of the webhook", await shop.set(call, "done", "EX", 3 * DAY, "NX"), "OK");
  expect("the same again", await shop.set(call, "done", "EX", 3 * DAY, "NX"), null);
  expect("HGET of the payment", await shop.hget(`shop:payment:${payment}`, "cents"), cents);
  if (given.release === "1") {
    await shop.hset(`shop:order:${order}`, "state", "paid"); // a mistake: orders are written by the service orders
  }
  await shop.xadd("shop:events:payments", "MAXLEN", "~", 1000, "*", "order", order, "payment", payment);
}

function idOf(text) {
  const hex = crypto.createHash("sha1").update(`${given.seed} ${text}`).digest("hex");
  return [hex.slice(0, 8), hex.slice(8, 12), `4${hex.slice(13, 16)}`, `a${hex.slice(17, 20)}`, hex.slice(20, 32)].join("-");
}

async function main() {
  const shop = new Redis(given.url, { maxRetriesPerRequest: 1, retryStrategy: () => null });
  shop.on("error", () => {}); // the command that fails says it
  try {
    await serve(shop);
    console.log(`payments: ${given.orders} orders, every reply was right`);
  } catch (error) {
    console.error(`payments: ${error.message}`);
    process.exitCode = 1;
  } finally {
    shop.disconnect();
  }
}

main();

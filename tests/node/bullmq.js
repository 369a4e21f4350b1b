// BullMQ: a worker, jobs at once, later, in bulk and with retries, and a flow of a parent and its children.
"use strict";

// Usage: node bullmq.js HOST:PORT [PACKAGE]. The package is BullMQ, in the version of that name in package.json.
const { FlowProducer, Queue, QueueEvents, Worker } = require(process.argv[3] || "bullmq");

async function main() {
  const [host, port] = process.argv[2].split(":");
  const connection = { host, port: Number(port), maxRetriesPerRequest: null };
  const prefix = "bull";
  const queue = new Queue("jobs", { connection, prefix });
  const events = new QueueEvents("jobs", { connection, prefix });
  await events.waitUntilReady();
  const worker = new Worker(
    "jobs",
    async (job) => {
      if (job.name === "fails once" && job.attemptsMade === 0) throw new Error("as it should");
      if (job.name === "parent") return Object.values(await job.getChildrenValues()).sort();
      await job.updateProgress(50);
      return job.data.n * 2;
    },
    { connection, prefix, concurrency: 4 },
  );
  const flow = new FlowProducer({ connection, prefix });
  const done = async (job) => job.waitUntilFinished(events, 60000);
  const seen = {};
  seen.one = await done(await queue.add("double", { n: 21 }));
  const began = Date.now();
  seen.later = await done(await queue.add("double", { n: 4 }, { delay: 300 }));
  seen.waited = Date.now() - began >= 290;
  const bulk = [1, 2, 3, 4, 5].map((n) => ({ name: "double", data: { n } }));
  seen.bulk = await Promise.all((await queue.addBulk(bulk)).map(done));
  seen.again = await done(await queue.add("fails once", { n: 5 }, { attempts: 2, backoff: 50 }));
  const tree = await flow.add({
    name: "parent",
    queueName: "jobs",
    children: [1, 2].map((n) => ({ name: "double", queueName: "jobs", data: { n } })),
  });
  seen.parent = await done(tree.job);
  seen.counts = await queue.getJobCounts("completed", "failed", "delayed");
  await Promise.all([worker.close(), events.close(), flow.close()]);
  await queue.obliterate({ force: true });
  await queue.close();
  console.log(JSON.stringify(seen));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});

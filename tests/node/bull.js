// Bull: jobs at once, later, in bulk with priorities, repeated and with retries, and their events.
"use strict";

const Queue = require("bull");

async function main() {
  const [host, port] = process.argv[2].split(":");
  const queue = new Queue("jobs", { redis: { host, port: Number(port) }, settings: { stalledInterval: 200 } });
  const heard = [];
  for (const event of ["global:completed", "global:failed", "global:progress"])
    queue.on(event, () => heard.push(event));
  await queue.isReady();
  queue.process("*", 4, async (job) => {
    if (job.name === "fails once" && job.attemptsMade === 0) throw new Error("as it should");
    await job.progress(50);
    await job.log("half of it");
    return job.data.n * 2;
  });
  const seen = {};
  const done = async (job) => job.finished();
  seen.one = await done(await queue.add("double", { n: 21 }));
  const began = Date.now();
  seen.later = await done(await queue.add("double", { n: 4 }, { delay: 300 }));
  seen.waited = Date.now() - began >= 290;
  const bulk = [1, 2, 3].map((n) => ({ name: "double", data: { n }, opts: { priority: n } }));
  seen.bulk = await Promise.all((await queue.addBulk(bulk)).map(done));
  seen.again = await done(await queue.add("fails once", { n: 5 }, { attempts: 2, backoff: 50 }));
  await queue.add("double", { n: 1 }, { repeat: { every: 3600000 } });
  seen.repeated = (await queue.getRepeatableJobs()).length;
  await queue.removeRepeatableByKey((await queue.getRepeatableJobs())[0].key);
  await queue.pause();
  seen.paused = await queue.isPaused();
  await queue.resume();
  const counts = await queue.getJobCounts();
  seen.counts = { completed: counts.completed >= 6, failed: counts.failed };
  seen.workers = (await queue.getWorkers()).length;
  seen.heard = heard.includes("global:completed") && heard.includes("global:progress");
  await queue.obliterate({ force: true });
  await queue.close();
  console.log(JSON.stringify(seen));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});

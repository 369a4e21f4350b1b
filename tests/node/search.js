// Asks the search of the built site, as its search page does: node search.js SITE QUERY...
// Prints, for each query, the list of the results' addresses, the best first, as JSON.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [site, ...queries] = process.argv.slice(2);
// Of a browser's page, the search needs only these to find something.
const page = { getElementById: () => null, documentElement: { dataset: { content_root: "./" } } };
const context = vm.createContext({ console, document: page, queries, SPHINX_HIGHLIGHT_ENABLED: false, _ready() {} });
context.window = context;
const scripts = ["base-stemmer.js", "english-stemmer.js", "language_data.js", "searchtools.js"];
const found = scripts.map((name) => path.join(site, "_static", name)).filter(fs.existsSync);
for (const file of [...found, path.join(site, "searchindex.js")]) {
  vm.runInContext(fs.readFileSync(file, "utf8"), context, { filename: file });
}
const results = vm.runInContext(
  `queries.map((query) => Search._performSearch(...Search._parseQuery(query)).reverse()
     .map(([name, , anchor]) => name + (anchor || "")))`,
  context,
);
process.stdout.write(JSON.stringify(results));

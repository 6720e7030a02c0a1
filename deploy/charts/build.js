// Writes charts.js into the folder that is given as argument.
//
// After a change in this folder: npm ci --ignore-scripts && npm run build -- ../../monitor/web/static
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { build } from "esbuild";

const LICENSE_FILE = /^(licen[cs]e|copying)(\.|$)/i;
const folder = process.argv[2];
if (!folder) throw new Error("expected the folder of charts.js: npm run build -- FOLDER");

const { metafile, outputFiles } = await build({
  entryPoints: ["charts.js"],
  banner: { js: "/* Made from deploy/charts. The licences of the bundled packages are at the end. */" },
  bundle: true,
  charset: "utf8",
  format: "iife",
  legalComments: "none",
  metafile: true,
  minify: true,
  target: "es2022",
  write: false,
});
writeFileSync(join(folder, "charts.js"), `${outputFiles[0].text}/*\n${licenses(metafile)}*/\n`);

/** Returns the text of each licence, below the packages that have it. */
function licenses({ outputs }) {
  const packages = new Set();
  for (const { inputs } of Object.values(outputs))
    for (const [path, { bytesInOutput }] of Object.entries(inputs)) {
      const [, folder] = path.match(/^(.*node_modules\/(?:@[^/]+\/)?[^/]+)\//) ?? [];
      if (folder && bytesInOutput) packages.add(folder);
    }
  const names = new Map();
  for (const path of [...packages].sort()) {
    const { name, version } = JSON.parse(readFileSync(join(path, "package.json"), "utf8"));
    const file = readdirSync(path).find((entry) => LICENSE_FILE.test(entry));
    if (!file) throw new Error(`${name} ${version} has no file with its licence`);
    const text = readFileSync(join(path, file), "utf8").trim().replaceAll("\r\n", "\n").replaceAll("*/", "* /");
    names.set(text, [...(names.get(text) ?? []), `${name} ${version}`]);
  }
  return [...names].map(([text, list]) => `${list.join(", ")}\n\n${text}\n`).join("\n----\n\n");
}

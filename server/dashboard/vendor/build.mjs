// Makes vendor.js, vendor.css and LICENSES.txt from the packages that package-lock.json names:
//   npm ci --ignore-scripts --prefix FOLDER     (with both package files in it; deploy/bootstrap --web does it)
//   node build.mjs FOLDER [OUTPUT]              (OUTPUT: where the files go; by default this folder)
import { copyFileSync, readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

const here = dirname(fileURLToPath(import.meta.url));
const packages = resolve(process.argv[2] ?? '.');
const output = resolve(process.argv[3] ?? here);
const esbuild = createRequire(join(packages, 'package.json'))('esbuild');
const modules = join(packages, 'node_modules');

const names = Object.keys(JSON.parse(readFileSync(join(here, 'package.json'), 'utf8')).dependencies);
const read = (name, file) => readFileSync(join(modules, name, file), 'utf8');
const version = (name) => JSON.parse(read(name, 'package.json')).version;
const made = names.map((name) => `${name} ${version(name)}`).join(', ');

await esbuild.build({
  stdin: { contents: readFileSync(join(here, 'entry.js'), 'utf8'), resolveDir: packages },
  outfile: join(output, 'vendor.js'),
  bundle: true,
  format: 'esm',
  minify: true,
  target: 'es2022',
  legalComments: 'none',
  banner: { js: `/* Made by build.mjs of ${made}; their licences are in LICENSES.txt. */` },
});
copyFileSync(join(modules, 'uplot/dist/uPlot.min.css'), join(output, 'vendor.css'));
writeFileSync(join(output, 'LICENSES.txt'), names.map((name) =>
  `${name} ${version(name)}\n\n${read(name, 'LICENSE').trim()}\n`).join(`\n${'-'.repeat(72)}\n\n`));

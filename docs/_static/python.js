// A worker in which Python runs, with the part of the package that needs no torch: one question, one answer, as text.

/** @typedef {{ loadPyodide: (options: { indexURL: string }) => Promise<any> }} Interpreter */

/** @param {string} name */
const file = (name) => new URL(`python/${name}`, import.meta.url);

async function start() {
  /** @type {Interpreter} */
  const { loadPyodide } = await import(file("pyodide.mjs").href);
  const python = await loadPyodide({ indexURL: file("").href });
  const packed = await fetch(file("zerolab.zip"));
  python.unpackArchive(await packed.arrayBuffer(), "zip");
  return python.pyimport("in_page");
}

const starting = start();
starting.catch(() => {}); // told to whoever asks

self.onmessage = async ({ data: { number, ask, given } }) => {
  try {
    const page = await starting;
    self.postMessage({ number, answer: page[ask](given) });
  } catch (error) {
    self.postMessage({ number, trouble: String(error) });
  }
};

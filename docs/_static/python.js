// A worker in which Python runs, with the part of the package that needs no torch: one question, one answer, as text.

/** @typedef {{ loadPyodide: (options: { indexURL: string }) => Promise<any> }} Interpreter */

const READY = -1; // the number of the message that says that Python is there, or why it is not

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
starting.then(
  () => self.postMessage({ number: READY }),
  (error) => self.postMessage({ number: READY, trouble: String(error) }),
);

self.onmessage = async ({ data: { number, ask, given } }) => {
  try {
    const page = await starting;
    self.postMessage({ number, answer: page[ask](given) });
  } catch (error) {
    self.postMessage({ number, trouble: String(error) });
  }
};

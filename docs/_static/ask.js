// Asks Python, in a worker, one question at a time: text in, text out. Loaded by a page when it is first needed.

/** @typedef {{ resolve: (text: string) => void, reject: (error: Error) => void }} Asker */

/** @type {{ worker: Worker, ready: Promise<void> } | undefined} */
let running;
/** @type {Map<number, Asker>} */
const waiting = new Map();
let count = 0;

/** The worker, which loads Python as soon as it is made. */
export function started() {
  if (running) return running;
  const worker = new Worker(new URL("python.js", import.meta.url), { type: "module" });
  const ready = new Promise((resolve, reject) => {
    waiting.set(-1, { resolve: () => resolve(undefined), reject });
  });
  worker.onmessage = ({ data: { number, answer, trouble } }) => {
    const asker = waiting.get(number);
    waiting.delete(number);
    if (trouble) asker?.reject(new Error(trouble));
    else asker?.resolve(answer);
  };
  ready.catch(() => end(new Error("Python could not be started")));
  running = { worker, ready };
  return running;
}

/** Ends the worker; whoever waits is told why, and the next question starts another. @param {Error} why */
function end(why) {
  running?.worker.terminate();
  running = undefined;
  for (const { reject } of waiting.values()) reject(why);
  waiting.clear();
}

/**
 * Asks a function of in_page.py. The seconds count from when Python is there; after them it is ended, with all that it
 * was asked, and the answer is null.
 * @param {string} name @param {string} given @param {number} [seconds] @returns {Promise<string | null>}
 */
export async function ask(name, given, seconds) {
  const { worker, ready } = started();
  await ready;
  const number = count++;
  const answer = new Promise((resolve, reject) => waiting.set(number, { resolve, reject }));
  worker.postMessage({ number, ask: name, given });
  if (seconds === undefined) return answer;
  const late = Symbol("late");
  let clock = 0;
  const ending = new Promise((resolve) => {
    clock = window.setTimeout(() => resolve(late), 1000 * seconds);
  });
  const first = await Promise.race([answer, ending]);
  window.clearTimeout(clock);
  if (first !== late) return first;
  answer.catch(() => {}); // it is told that it was ended, and has been given up
  end(new Error("it was ended"));
  return null;
}

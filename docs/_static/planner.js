// The planner's page: a form, Python that answers in a worker, and a bar for each stage below the line of the memory.

/** @typedef {Record<string, number | string | boolean | null>} Row */
/**
 * @typedef {{ error?: string, title: string, answer: string, sensitivity: string, usable: number,
 *   parts: Record<string, Record<string, number>>, rows: Row[], remedies: Row[],
 *   settings: Record<string, string> }} Plan
 */

const NAMES = { fsdp2: "FSDP2", accelerate: "Accelerate", deepspeed: "DeepSpeed", megatron: "Megatron" };
/** @param {string} system */
const nameOf = (system) => NAMES[/** @type {keyof typeof NAMES} */ (system)] ?? system;
const FROM_A_FOLDER =
  "A browser runs Python only on pages that a server sends. In the site's folder: python -m http.server, " +
  "then open http://localhost:8000/planner.html.";

const form = /** @type {HTMLFormElement} */ (document.querySelector(".zl-planner"));
const shown = /** @type {HTMLElement} */ (document.querySelector(".zl-plan"));

/** @param {string} tag @param {Record<string, string>} given @param {(Node | string)[]} inner */
function element(tag, given = {}, ...inner) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) made.setAttribute(name, value);
  made.append(...inner);
  return made;
}

/** @param {number} bytes */
const gigabytes = (bytes) => (bytes / 1e9).toLocaleString("en", { maximumFractionDigits: 1, minimumFractionDigits: 1 });

/**
 * One stage: its name, its bar up to the line and beyond, and what it comes to.
 * @param {Plan} plan @param {number} k
 */
function stage(plan, k) {
  const row = plan.rows[k];
  const name = String(row.stage);
  const parts = plan.parts[name];
  const needed = Object.values(parts).reduce((sum, bytes) => sum + bytes, 0);
  // The line stands where it stands in a notebook: in the middle.
  const bar = Object.entries(parts).map(([part, bytes]) =>
    element("i", {
      class: `zl-of-${part}`,
      style: `width:${Math.min(100, (50 * bytes) / plan.usable)}%`,
      title: `${part.replace("_", " ")}: ${gigabytes(bytes)} GB`,
    }),
  );
  const fits = row.fits ? "fits" : `lacks ${gigabytes(needed - plan.usable)} GB`;
  const seconds = Number(row.step_seconds).toPrecision(3);
  return element(
    "div",
    { class: "zl-stage" },
    element("b", {}, name),
    element("div", { class: "zl-bar", "aria-hidden": "true" }, ...bar),
    element("span", {}, `${gigabytes(needed)} GB, ${fits}; a step takes ${seconds} s`),
  );
}

/**
 * What to try where nothing fits, each with what it saves and costs.
 * @param {Row[]} rows
 */
function remedies(rows) {
  const line = (/** @type {string[]} */ cells, tag = "td") =>
    element("tr", {}, ...cells.map((text) => element(tag, {}, text)));
  const said = rows.map((row) => [
    String(row.try),
    `${gigabytes(1e9 * Number(row["saves GB"]))} GB`,
    `${gigabytes(1e9 * Number(row["needs GB"]))} GB${row.fits ? ", fits" : ""}`,
    String(row["GPU time a token"]),
  ]);
  return element(
    "table",
    { class: "zl-remedies" },
    element("caption", {}, "What to try, one thing at a time"),
    line(["with", "saves", "needs", "GPU time a token"], "th"),
    ...said.map((cells) => line(cells)),
  );
}

/** @param {Plan} plan */
function show(plan) {
  if (plan.error) {
    shown.replaceChildren(element("p", { class: "zl-refused" }, plan.error));
    return;
  }
  const legend = Object.keys(Object.values(plan.parts)[0]).map((part) =>
    element("span", {}, element("i", { class: `zl-of-${part}` }), part.replace("_", " ")),
  );
  const settings = Object.entries(plan.settings).map(([system, text]) =>
    element(
      "details",
      { class: "zl-folded" },
      element("summary", {}, system === "not covered" ? "What is left to your own code" : `With ${nameOf(system)}`),
      element("pre", { tabindex: "0" }, text),
    ),
  );
  shown.replaceChildren(
    element("p", { class: "zl-answer" }, plan.answer),
    element("p", { class: "zl-legend" }, ...legend, `dashed: ${gigabytes(plan.usable)} GB`),
    ...plan.rows.map((_, k) => stage(plan, k)),
    ...(plan.remedies.length ? [remedies(plan.remedies)] : []),
    element("p", {}, plan.sensitivity),
    ...settings,
  );
}

/** What the form asks, as keywords of `plan`. */
function asked() {
  /** @type {Record<string, string | number>} */
  const given = {};
  for (const [name, value] of new FormData(form)) {
    if (typeof value !== "string" || value === "") continue;
    given[name] = ["world_size", "rows", "length", "tensor", "context"].includes(name) ? Number(value) : value;
  }
  return given;
}

const ASK = new URL("ask.js", /** @type {HTMLScriptElement} */ (document.currentScript).src).href;

async function answer() {
  if (!form.checkValidity()) {
    form.reportValidity();
    return;
  }
  const question = JSON.stringify(asked());
  const late = setTimeout(() => shown.prepend(element("p", {}, "Loading Python …")), 300);
  try {
    const { ask } = await import(ASK);
    const text = await ask("planned", question);
    clearTimeout(late);
    if (question === JSON.stringify(asked())) show(JSON.parse(text)); // else a later answer is on its way
  } catch (error) {
    show(/** @type {Plan} */ ({ error: `Python could not be started here: ${error}` }));
  }
}

show(JSON.parse(/** @type {HTMLElement} */ (document.getElementById("zl-plan")).textContent ?? ""));
form.addEventListener("submit", (event) => event.preventDefault());
const isServed = window.location.protocol !== "file:";
form.addEventListener("change", () => {
  if (isServed) answer();
  else show(/** @type {Plan} */ ({ error: FROM_A_FOLDER }));
});
// Whoever touches the form will change something: by then Python is on its way.
for (const touch of ["focusin", "pointerenter"]) {
  form.addEventListener(touch, () => isServed && import(ASK).then(({ started }) => started()), { once: true });
}

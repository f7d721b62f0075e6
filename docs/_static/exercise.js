// Exercises that are plain functions, written and checked on the page. What was tried and passed is kept in this
// browser alone, beside the text of each answer.

/** @typedef {{ tries: number, passed: boolean }} Tried */
/** @typedef {{ ran: boolean, passed: boolean, said: string[], printed: string, table: string }} Checked */
/** @typedef {{ exercises: Record<string, Tried>, answers: Record<string, string> }} Progress */

const KEPT = "zerolab";
const ASK_HERE = new URL("ask.js", /** @type {HTMLScriptElement} */ (document.currentScript).src).href;
const canRun = window.location.protocol !== "file:";
const CANNOT_LOAD =
  "A browser runs Python only on pages that a server sends. In the site's folder: python -m http.server, then open " +
  "this page at http://localhost:8000.";

/** What this browser has kept; nothing where it keeps nothing. @returns {Progress} */
function progress() {
  try {
    const kept = JSON.parse(localStorage.getItem(KEPT) ?? "{}");
    return { exercises: kept.exercises ?? {}, answers: kept.answers ?? {} };
  } catch {
    return { exercises: {}, answers: {} };
  }
}

/** @param {(kept: Progress) => void} change */
function keep(change) {
  const kept = progress();
  change(kept);
  try {
    localStorage.setItem(KEPT, JSON.stringify(kept));
  } catch {
    // Full, or forbidden: then nothing is kept, and everything else goes on.
  }
}

/** @param {string} tag @param {Record<string, string>} given @param {(Node | string)[]} inner */
function make(tag, given = {}, ...inner) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) made.setAttribute(name, value);
  made.append(...inner);
  return made;
}

/** A new line begins where the last one did, and further in after a colon. @param {HTMLTextAreaElement} area */
function newLine(area) {
  const before = area.value.slice(0, area.selectionStart);
  const line = before.slice(before.lastIndexOf("\n") + 1);
  const indent = /^ */.exec(line)?.[0] ?? "";
  insert(area, `\n${indent}${line.trimEnd().endsWith(":") ? "    " : ""}`);
}

/**
 * In place of what is selected, as if it were typed: only so can it be undone, and what was written before it.
 * @param {HTMLTextAreaElement} area @param {string} text
 */
function insert(area, text) {
  if (document.execCommand("insertText", false, text)) return;
  area.setRangeText(text, area.selectionStart, area.selectionEnd, "end");
  area.dispatchEvent(new Event("input"));
}

/** What the check says. @param {Checked} found */
function told(found) {
  const lines = make("pre", { tabindex: "0" }, found.printed);
  const printed = make("details", { class: "zl-folded" }, make("summary", {}, "What it printed"), lines);
  const table = make("div", { class: "cell_output zl-rows", tabindex: "0" });
  table.innerHTML = found.table;
  return [
    make("p", { class: `zl-verdict${found.passed ? " zl-passed" : ""}` }, found.passed ? "✓ Passed." : "Not yet."),
    make("pre", { tabindex: "0" }, found.said.join("\n")),
    ...(found.table ? [table] : []),
    ...(found.printed ? [printed] : []),
  ];
}

/** The keys of an editor: Tab stays in the text unless Escape came before it. @param {HTMLTextAreaElement} area */
function listen(area) {
  let leaves = false;
  area.addEventListener("keydown", (event) => {
    const { key, shiftKey, ctrlKey, metaKey } = event;
    if (key === "Enter" && !(shiftKey || ctrlKey || metaKey)) newLine(area);
    else if (key === "Tab" && !shiftKey && !leaves) insert(area, "    ");
    else {
      leaves = key === "Escape";
      return;
    }
    event.preventDefault();
  });
}

/**
 * Asks Python; what runs on and on is ended, and counts as a try.
 * @param {string} id @param {string} text @param {DOMStringMap} given @returns {Promise<Checked>}
 */
async function judged(id, text, { seconds, late = "" }) {
  const { ask } = await import(ASK_HERE);
  const answer = await ask("checked", JSON.stringify({ id, text }), Number(seconds));
  /** @type {Checked} */
  const found = answer ? JSON.parse(answer) : { ran: true, passed: false, said: [late], printed: "", table: "" };
  if (found.ran) {
    keep(({ exercises }) => {
      const { tries = 0, passed = false } = exercises[id] ?? {};
      exercises[id] = { tries: tries + 1, passed: passed || found.passed };
    });
  }
  return found;
}

/** One exercise: its form, in place of the code that the page came with. @param {HTMLElement} home */
function fill(home) {
  const { exercise: id = "", opening = "" } = home.dataset;
  const area = /** @type {HTMLTextAreaElement} */ (
    make("textarea", { spellcheck: "false", autocapitalize: "off", "aria-label": "Your answer", wrap: "off" })
  );
  const check = /** @type {HTMLButtonElement} */ (make("button", { type: "button" }, "Check"));
  const again = make("button", { type: "button", class: "zl-quiet" }, "Start again");
  const state = make("span", { class: "zl-tried" });
  const said = make("div", { class: "zl-said", role: "status", "aria-live": "polite" });
  area.value = progress().answers[id] ?? opening;

  function resize() {
    area.rows = Math.max(8, area.value.split("\n").length + 1);
  }
  function tell() {
    const tried = progress().exercises[id];
    const tries = tried && `${tried.tries} ${tried.tries === 1 ? "try" : "tries"}`;
    state.textContent = tried ? `${tried.passed ? "✓ passed" : "not passed yet"}, ${tries}` : "";
    state.classList.toggle("zl-passed", Boolean(tried?.passed));
  }

  async function run() {
    if (!canRun) {
      said.replaceChildren(make("p", {}, CANNOT_LOAD));
      return;
    }
    const focused = document.activeElement === check;
    check.disabled = true;
    said.replaceChildren(make("p", {}, "Loading Python …"));
    try {
      said.replaceChildren(...told(await judged(id, area.value, home.dataset)));
    } catch (error) {
      said.replaceChildren(make("p", {}, `Python could not be started here: ${error}`));
    }
    check.disabled = false;
    if (focused && document.activeElement === document.body) check.focus(); // what is disabled loses it
    tell();
  }

  listen(area);
  area.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.shiftKey || event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    run();
  });
  // Whoever begins to write will want to have it checked: by then Python is there.
  area.addEventListener("focus", () => canRun && import(ASK_HERE).then(({ started }) => started()), { once: true });
  area.addEventListener("input", () => {
    resize();
    keep(({ answers }) => {
      answers[id] = area.value;
    });
  });
  check.addEventListener("click", run);
  again.addEventListener("click", () => {
    area.focus();
    area.select();
    insert(area, opening);
    said.replaceChildren();
    keep(({ answers }) => {
      delete answers[id];
    });
  });

  const words = "Shift+Enter checks. Tab indents; Escape, then Tab, leaves the text.";
  const keys = make("small", { id: `keys-${id}` }, words);
  area.setAttribute("aria-describedby", keys.id);
  home.replaceChildren(area, make("div", { class: "zl-row" }, check, again, state, keys), said);
  resize();
  tell();
}

/** In the list of all exercises: which are passed. */
function mark() {
  const { exercises } = progress();
  for (const [id, { passed }] of Object.entries(exercises)) {
    const link = document.querySelector(`article table a[href="${CSS.escape(id)}.html"]`);
    if (passed) link?.after(make("span", { class: "zl-passed" }, " ✓ passed here"));
  }
}

for (const home of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(".zl-exercise"))) fill(home);
mark();

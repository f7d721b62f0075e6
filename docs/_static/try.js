// The panel of "Try it": a choice becomes the name of a recording, which is loaded, told in figures, and played.
// Recordings are scripts, because a page that was opened from a folder may load nothing else.

/**
 * @typedef {Record<string, number>} Amounts
 * @typedef {{ parameters: number, precision: string, state: Amounts, formula: Amounts, terms: Amounts, ddp: Amounts,
 *   peak: number, sends: number, formula_sends: number }} Figures
 * @typedef {{ name: string, figures: Figures, packed: string }} Given
 * @typedef {{ stage: string, ranks: string, model: string, change: string }} Choice
 * @typedef {{ pair?: null, shown: string, byBeats: boolean, setTheme: (theme: string) => void, play: () => void,
 *   remove: () => void }} Playing
 * @typedef {{ mount: (host: HTMLElement, payload: unknown, options: object) => Playing | null,
 *   bytes: (number: number) => string }} Bundle
 */

{
  // In a block, because a classic script shares its names with every other on the page.
  /** @type {(id: string) => HTMLElement} */
  const place = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
  const panel = /** @type {HTMLFormElement} */ (place("zt-panel"));
  const page = /** @type {Window & typeof globalThis & { zerolabPlayer: Bundle, zerolabChoice: (given: Given) => void,
    zerolabPlayers?: Playing[], zerolabChosen?: string }} */ (window);
  const { mount, bytes } = page.zerolabPlayer;
  /** @type {string[]} */
  const made = JSON.parse(place("zt-made").textContent ?? "[]");
  const SIMULATED = ["7b", "llama-70b", "1t"];
  const OPTIONS = ["precision", "batches", "checkpointing", "units", "prefetch"];
  /** @type {Choice} */
  const BEGIN = { stage: "zero3", ranks: "4", model: "gpt-tiny", change: "base" };

  /** @type {(name: string) => HTMLInputElement[]} */
  const radios = (name) => [.../** @type {NodeListOf<HTMLInputElement>} */ (panel.querySelectorAll(`[name=${name}]`))];
  /** @type {(name: string, value: string) => HTMLInputElement | undefined} */
  const radio = (name, value) => radios(name).find((one) => one.value === value);
  /** @type {(name: string, value: string) => string} */
  const words = (name, value) => radio(name, value)?.nextElementSibling?.textContent ?? value;
  /** @type {(choice: Choice) => string} */
  const named = ({ model, stage, ranks, change }) => `${model}-${stage}-${ranks}-${change}`;
  /** The option that a change belongs to. @type {(change: string) => string | undefined} */
  const optionOf = (change) => OPTIONS.find((name) => change !== "base" && radio(name, change));

  /**
   * Why a value cannot be chosen, in words; "" if it can.
   * @param {Choice} choice @param {string} name @param {string} value
   */
  function reason(choice, name, value) {
    const simulated = SIMULATED.includes(choice.model);
    if (name === "ranks" && simulated && Number(value) < 8)
      return "Models of this size are simulated on 8 ranks or more.";
    if (name === "ranks" && !simulated && Number(value) > 8)
      return "Recorded with up to 8 ranks: for more, choose a model that is simulated.";
    if (!OPTIONS.includes(name)) return "";
    if (simulated) return name === "precision" ? "Simulated in bf16." : value === "base" ? "" : "Not simulated here.";
    if (value === "base") return "";
    if (choice.model !== "gpt-tiny") return "Recorded with the tiny GPT.";
    return name === "prefetch" && choice.stage !== "zero3"
      ? "Only ZeRO-3 gathers units, so only it can fetch early."
      : "";
  }

  /** The controls as the choice has them, and below each what cannot be chosen and why. @param {Choice} choice */
  function draw(choice) {
    const simulated = SIMULATED.includes(choice.model);
    for (const name of ["stage", "ranks", "model", ...OPTIONS]) {
      const own = OPTIONS.includes(name);
      const plain = simulated && name === "precision" ? "bf16" : "base";
      const wanted = own
        ? optionOf(choice.change) === name
          ? choice.change
          : plain
        : choice[/** @type {"stage"} */ (name)];
      const reasons = new Set();
      for (const one of radios(name)) {
        const why = reason(choice, name, one.value);
        one.checked = one.value === wanted;
        one.disabled = why !== "" && !one.checked;
        if (why) reasons.add(why);
      }
      place(`zt-why-${name}`).textContent = [...reasons].join(" ");
    }
  }

  /** The nearest choice that exists, and what had to give way. @param {Choice} choice @returns {[Choice, string]} */
  function mended(choice) {
    const found = { ...choice };
    const notes = [];
    if (reason(found, "ranks", found.ranks)) {
      found.ranks = "8";
      notes.push("N is 8 now.");
    }
    const option = optionOf(found.change);
    if (found.change !== "base" && (!option || reason(found, option, found.change))) {
      if (option) notes.push(`${title(option)} is back at "${words(option, "base")}".`);
      found.change = "base";
    }
    return [found, notes.join(" ")];
  }

  /** @type {(name: string) => string} */
  const title = (name) => panel.querySelector(`.zt-${name} legend`)?.textContent ?? name;

  /** What the address says; what it says wrongly is as at the beginning. @returns {Choice} */
  function addressed() {
    const given = new URLSearchParams(window.location.hash.slice(1));
    const choice = { ...BEGIN };
    for (const name of /** @type {const} */ (["stage", "ranks", "model"])) {
      const value = given.get(name);
      if (value && radio(name, value)) choice[name] = value;
    }
    choice.change = given.get("change") ?? "base";
    return mended(choice)[0];
  }

  /** @param {Choice} choice */
  function remember({ change, ...rest }) {
    const hash = new URLSearchParams(change === "base" ? rest : { ...rest, change });
    window.history.replaceState(null, "", `#${hash}`);
  }

  /** @type {Map<string, Given>} */
  const loaded = new Map();
  page.zerolabChoice = (given) => loaded.set(given.name, given);

  /** A choice's recording, from the folder beside this page. @param {string} name @returns {Promise<Given>} */
  function load(name) {
    const known = loaded.get(name);
    if (known) return Promise.resolve(known);
    return new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = `choices/${name}.js`;
      script.onload = () => {
        const given = loaded.get(name);
        script.remove();
        if (given) resolve(given);
        else reject(new Error(name));
      };
      script.onerror = () => reject(new Error(name));
      document.head.append(script);
    });
  }

  /** @param {string} packed */
  function unpacked(packed) {
    const small = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([small]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  }

  /** @type {(amounts: Amounts) => number} */
  const sum = (amounts) => Object.values(amounts).reduce((all, one) => all + one, 0);
  /** By how much, in words. @type {(by: number, below: string, above: string, same: string) => string} */
  const differs = (by, below, above, same) => (by ? `${bytes(Math.abs(by))} ${by < 0 ? below : above}` : same);
  /** @type {(category: string) => string} */
  const spaced = (category) => category.replaceAll("_", " ");

  /**
   * What a choice changed against the one before it, in one line.
   * @param {Choice} choice @param {Figures} now @param {Choice} before @param {Figures} then
   */
  function compared(choice, now, before, then) {
    const changes = Object.keys(now.state)
      .map((each) => /** @type {const} */ ([spaced(each), now.state[each] - then.state[each]]))
      .filter(([, by]) => by)
      .map(([each, by]) => `${each} ${by < 0 ? "\u2212" : "+"}${bytes(Math.abs(by))}`);
    const kept = differs(sum(now.state) - sum(then.state), "less than", "more than", "as much as");
    const peak = differs(now.peak - then.peak, "lower", "higher", "as high");
    const sent = differs(now.sends - then.sends, "less", "more", "as much");
    const parts = changes.length ? ` (${changes.join(", ")})` : "";
    const pair = [said(choice, before), said(before, choice)];
    const keeps = `a rank keeps ${kept} with ${pair[1]} at the update${parts}`;
    return `${pair[0]}: ${keeps}, its peak is ${peak}, and it sends ${sent}.`;
  }

  /** What tells a choice from another. @param {Choice} choice @param {Choice} other */
  function said(choice, other) {
    const names = /** @type {const} */ (["stage", "model", "ranks"]).filter((name) => choice[name] !== other[name]);
    const parts = names.map((name) =>
      name === "ranks" ? `N = ${words(name, choice.ranks)}` : words(name, choice[name]),
    );
    if (choice.change !== other.change) {
      const option = optionOf(choice.change) ?? optionOf(other.change) ?? "precision";
      parts.push(`${title(option).toLowerCase()} "${words(option, choice.change)}"`);
    }
    return parts.join(", ");
  }

  /** What a rank holds and sends, measured and by formula. @param {Figures} figures @param {boolean} simulated */
  function tell(figures, simulated) {
    const { state, formula, terms, ddp } = figures;
    const whole = sum(ddp);
    const share = Math.round(100 * (1 - sum(state) / whole));
    const parts = Object.keys(state);
    const bars = parts.map(
      (each) => `<b class="zt-${each}" style="width:${(100 * state[each]) / Math.max(whole, sum(state))}%"></b>`,
    );
    const row = (/** @type {string} */ head, /** @type {number} */ one, /** @type {number} */ two, look = "") =>
      `<tr${look}><th scope="row">${head}</th><td title="${one} B">${bytes(one)}</td>` +
      `<td title="${two} B">${bytes(two)}</td></tr>`;
    const rows = parts.map((each) => row(`<i class="zt-${each}"></i>${spaced(each)}`, state[each], formula[each]));
    rows.push(row("held at the update", sum(state), sum(formula), ' class="zt-sum"'));
    rows.push(row("sent in a step", figures.sends, figures.formula_sends));
    const named_ = Object.entries(terms).map(
      ([term, by]) => `${spaced(term)} ${by < 0 ? "\u2212" : ""}${bytes(Math.abs(by))}`,
    );
    const how = simulated ? "simulated" : "measured";
    const compare =
      share > 0
        ? `\u2212${share} % against DDP, whose bytes are the dashed frame`
        : "the dashed frame is what DDP holds";
    const rest = named_.length ? ` Beside the formula is held: ${named_.join(", ")}.` : "";
    place("zt-bar").innerHTML = `<div class="zt-bar" role="img" aria-label="${compare}">${bars.join("")}</div>`;
    place("zt-figures").innerHTML =
      `<table><caption>What a rank holds and sends: ${figures.parameters.toLocaleString("en")} parameters, ` +
      `${figures.precision}</caption><thead><tr><th scope="col"><span>bytes a rank</span></th>` +
      `<th scope="col">${how}</th><th scope="col">formula</th></tr></thead>` +
      `<tbody>${rows.join("")}</tbody></table><p>${compare[0].toUpperCase()}${compare.slice(1)}.${rest}</p>`;
  }

  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)");
  function theme() {
    const chosen = document.body.dataset.theme;
    return chosen === "light" || chosen === "dark" ? chosen : system.matches ? "dark" : "light";
  }

  /** @type {Playing | null} */
  let player = null;
  /** @type {Choice} */
  let chosen = BEGIN;
  /** @type {{ choice: Choice, figures: Figures } | null} */
  let last = null;

  function themed() {
    document.body.classList.toggle("zt-dark", theme() === "dark");
    player?.setTheme(theme());
  }

  /** Puts a recording's player in place of the last one, in the same view. @param {unknown} payload */
  function show(payload) {
    const kept = player ? { view: player.shown, events: !player.byBeats } : {};
    player?.remove();
    page.zerolabPlayers = [];
    place("zt-player").replaceChildren();
    player = mount(place("zt-player"), payload, { ...kept, theme: theme() });
  }

  /** Shows a choice. @param {Choice} choice @param {string} [note] @param {boolean} [plays] */
  async function choose(choice, note = "", plays = false) {
    chosen = choice;
    draw(choice);
    remember(choice);
    const name = named(choice);
    try {
      if (!made.includes(name)) throw new Error(name);
      const given = await load(name);
      const payload = await unpacked(given.packed);
      if (chosen !== choice) return; // another was chosen meanwhile
      const { figures } = given;
      const simulated = SIMULATED.includes(choice.model);
      const same = last && named(last.choice) === name;
      const ranks = choice.ranks === "1" ? "1 rank" : `${words("ranks", choice.ranks)} ranks`;
      const line =
        last && !same && last.choice.model === choice.model
          ? compared(choice, figures, last.choice, last.figures)
          : `${words("stage", choice.stage)} on ${ranks}: ` +
            `each keeps ${bytes(sum(figures.state))} at the update, and sends ${bytes(figures.sends)} in a step.`;
      place("zt-said").textContent = `${note ? `${note} ` : ""}${simulated ? "Simulated. " : ""}${line}`;
      tell(figures, simulated);
      show(payload);
      last = { choice, figures };
      page.zerolabChosen = name;
      if (plays && !calm.matches) player?.play();
    } catch (trouble) {
      if (chosen !== choice) return;
      place("zt-said").textContent = made.includes(name)
        ? `The recording of this choice could not be read: is choices/${name}.js beside this page? (${trouble})`
        : "This build of the site was made without the recording of this choice; make site makes all of them.";
    }
  }

  panel.addEventListener("change", (event) => {
    const { name, value } = /** @type {HTMLInputElement} */ (event.target);
    const option = optionOf(chosen.change);
    const moved = OPTIONS.includes(name) ? { ...chosen, change: value } : { ...chosen, [name]: value };
    const gaveWay = OPTIONS.includes(name) && option && option !== name;
    const [choice, note] = mended(moved);
    const back = gaveWay ? `${title(option)} is back at "${words(option, "base")}": one option changes at a time.` : "";
    choose(choice, `${back}${note}`, true);
  });
  panel.addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("hashchange", () => choose(addressed()));
  new MutationObserver(themed).observe(document.body, { attributes: true, attributeFilter: ["data-theme"] });
  system.addEventListener("change", themed);
  themed();
  choose(addressed());
}

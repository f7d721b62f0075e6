// The guided walk: chapter after chapter plays a few beats, comes to rest, and may ask a question. It never blocks.

import { chaptersOf } from "./chapters.js";
import { button, element, say } from "./dom.js";
import { focusOn } from "./focus.js";
import { Veil } from "./veil.js";

/**
 * @import { Player } from "./player.js"
 * @import { Answer, Chapter } from "./types.d.ts"
 */

let walks = 0;

/** The walk of one player: a button beside the views, and a card in place of the caption while it is open. */
export class Walk {
  /** @param {Player} player */
  constructor(player) {
    this.player = player;
    // With two side by side, each would lead the other away.
    this.chapters = player.options.drawn ? [] : chaptersOf(player);
    this.place = -1; // of the chapter that is told; -1 while the walk is closed
    this.rested = false;
    walks += 1;
    this.group = `zl-walk-${walks}`; // the answers of two players on a page are no one group of buttons
    this.cameFrom = { view: player.shown, events: false };
    this.fitted = 0; // the width for which the card has room for its longest chapter
    this.veil = new Veil(player.panes.ownership);
    const more = { class: "zl-walks", "aria-pressed": "false", "aria-label": null };
    this.button = button("A guided walk through one step (w)", "Walk", () => this.toggle(), more);
    const parts = walkCard(this);
    this.card = parts.card;
    this.asks = parts.asks;
    this.answer = parts.answer;
    this.told = parts.told;
    this.back = parts.back;
    this.next = parts.next;
    // After a click the arrow keys lead on; by keyboard they go from answer to answer.
    let byPointer = false;
    this.card.addEventListener("pointerdown", () => {
      byPointer = true;
    });
    this.card.addEventListener("keydown", () => {
      byPointer = false;
    });
    // A click on an answer's words ends in one on its button, which has the focus by then.
    this.card.addEventListener("click", () => byPointer && this.#giveBack());
    if (!this.chapters.length) return;
    player.scene.views.element.before(this.button);
    player.scene.spoken.after(this.card);
  }

  get open() {
    return this.place >= 0;
  }

  /** What a test or a notebook reads of it; null while it is closed. */
  state() {
    if (!this.open) return null;
    return { chapter: this.place + 1, of: this.chapters.length, rested: this.rested, ...this.chapters[this.place] };
  }

  toggle() {
    if (this.open) this.leave();
    else this.show(0);
  }

  /**
   * The chapter after or before this one; after the last the walk begins again.
   * @param {number} direction
   */
  go(direction) {
    this.show(Math.max(0, this.place + direction) % this.chapters.length);
  }

  /**
   * Opens the walk at a chapter, counted from 0, and plays it; or leaves the player where it is, as after a reload.
   * @param {number} place @param {boolean} [plays]
   */
  show(place, plays = true) {
    const { player } = this;
    if (!this.chapters.length) return;
    player.pause();
    const opened = !this.open;
    this.place = Math.max(0, Math.min(this.chapters.length - 1, place));
    if (opened) this.#open();
    this.#tell();
    if (plays) return this.#play();
    this.rested = true;
    this.asks.hidden = !this.chapters[this.place].asks;
    player.settle();
  }

  leave() {
    if (!this.open) return;
    const inside = this.card.contains(document.activeElement);
    this.place = -1;
    this.#mark(false);
    if (inside) this.player.root.focus({ preventScroll: true });
    this.#goBack();
  }

  /** To the view and the telling that the walk was opened from, unless another was chosen meanwhile. */
  #goBack() {
    const { player, cameFrom } = this;
    if (cameFrom.events && player.byBeats) player.tellEvents(true);
    player.pause();
    player.setView(player.shown === "story" ? cameFrom.view : player.shown);
  }

  /** Called with every drawing: where the chapter ends, playing stops, and Play then plays it again. */
  moved() {
    if (!this.open) return;
    const { clock } = this.player;
    const { from, rest, units } = this.chapters[this.place];
    this.veil.draw(units);
    if (this.fitted !== this.player.width) this.#fit();
    if (!clock.playing || rest <= from || clock.time < rest) return;
    if (this.rested) {
      this.rested = false;
      return this.player.showTime(from);
    }
    this.player.pause();
    this.#rest();
  }

  #open() {
    const { player } = this;
    this.#mark(true);
    this.cameFrom = { view: player.shown, events: !player.byBeats };
    player.setFilter({ ranks: null, category: null, unit: null });
    focusOn(player, 0); // the rank that the chapters speak of
    if (!player.byBeats) player.tellEvents(false);
    player.setView("story"); // the memory bars are what the questions speak of
  }

  /** @param {boolean} open */
  #mark(open) {
    this.card.hidden = !open;
    this.player.root.classList.toggle("zl-walking", open);
    this.button.setAttribute("aria-pressed", String(open));
    if (!open) this.veil.draw([]);
  }

  #play() {
    const { player } = this;
    const { from, rest } = this.chapters[this.place];
    this.rested = false;
    if (rest <= from || player.clock.calm) return this.#rest();
    this.asks.hidden = true;
    player.showTime(from);
    player.play();
  }

  /** The chapter has come to its end: that moment stays, and the question is put. */
  #rest() {
    this.rested = true;
    this.asks.hidden = !this.chapters[this.place].asks;
    this.player.showTime(this.chapters[this.place].rest);
    this.player.settle();
  }

  #giveBack() {
    const at = document.activeElement;
    if (at?.tagName === "INPUT" && this.card.contains(at)) this.player.root.focus({ preventScroll: true });
  }

  #tell() {
    this.#fill(this.chapters[this.place], this.place);
    this.back.disabled = this.place === 0;
    const again = this.place === this.chapters.length - 1;
    say(this.next, again ? "Again" : "Next");
    this.#fit();
  }

  /** @param {Chapter} chapter @param {number} place */
  #fill({ title, says, asks }, place) {
    const [count, heading, text] = this.told;
    say(count, `${place + 1} of ${this.chapters.length}`);
    say(heading, title);
    say(text, says);
    say(this.answer, "");
    this.card.classList.toggle("zl-asking", Boolean(asks));
    if (!asks) return this.asks.replaceChildren();
    const answers = asks.answers.map((answer, k) => this.#choice(answer, `${place}-${k}`));
    const all = element("fieldset", {}, element("legend", {}, asks.text), ...answers);
    this.asks.replaceChildren(all, this.answer);
  }

  /** @param {Answer} answer @param {string} value */
  #choice(answer, value) {
    const input = element("input", { type: "radio", name: this.group, value });
    const choice = element("label", {}, input, answer.text);
    input.addEventListener("change", () => {
      for (const other of this.asks.querySelectorAll("label")) other.classList.remove("zl-right", "zl-wrong");
      choice.classList.add(answer.right ? "zl-right" : "zl-wrong");
      say(this.answer, `${answer.right ? "Right." : "Not this."} ${answer.says}`);
    });
    return choice;
  }

  /** Room for the longest chapter and its longest answer, so that nothing below jumps from chapter to chapter. */
  #fit() {
    const { player, card } = this;
    if (this.fitted === player.width || !player.width || !this.open) return;
    this.fitted = player.width;
    const { hidden } = this.asks;
    const [chosen, said] = [this.asks.querySelector("input:checked"), this.answer.textContent];
    card.style.minHeight = "0";
    const heights = this.chapters.map((chapter, place) => {
      this.#fill(chapter, place);
      this.asks.hidden = !chapter.asks;
      const longest = chapter.asks?.answers.map(({ says }) => says).sort((a, b) => b.length - a.length)[0];
      say(this.answer, longest ? `Not this. ${longest}` : "");
      return card.offsetHeight;
    });
    card.style.minHeight = `${Math.max(...heights)}px`;
    this.#fill(this.chapters[this.place], this.place);
    this.asks.hidden = hidden;
    const again = chosen && this.asks.querySelector(`[value="${chosen.getAttribute("value")}"]`);
    if (again instanceof HTMLInputElement) again.click();
    else say(this.answer, said ?? "");
    player.redraw();
  }
}

/**
 * The card's elements, empty.
 * @param {Walk} walk
 */
function walkCard(walk) {
  const told = [element("span", { class: "zl-walk-count" }), element("h3"), element("p")];
  const asks = element("div", { class: "zl-walk-asks", "aria-live": "polite", hidden: "" });
  const answer = element("p", { class: "zl-walk-answer", role: "status" });
  const back = button("Previous chapter (←)", "Back", () => walk.go(-1), {
    "aria-label": "Back: previous chapter (←)",
  });
  const next = button("Next chapter (→)", "Next", () => walk.go(1), { class: "zl-walk-next" });
  const leave = button("End the walk (escape)", "✕", () => walk.leave());
  const card = element(
    "section",
    { class: "zl-walk", "aria-label": "Guided walk", hidden: "" },
    element("div", { class: "zl-walk-told", "aria-live": "polite" }, ...told),
    asks,
    element("div", { class: "zl-walk-keys" }, back, next, leave),
  );
  return { card, told, asks, answer, back, next };
}

// Captions have room for the longest of them, so that nothing below jumps from beat to beat.

import { caption } from "./caption.js";
import { element } from "./dom.js";

/** @import { Player } from "./player.js" */

/** How many of the longest texts are tried: letters do not all have the same width. */
const TRIED = 3;

/**
 * Gives the captions of some players, which go by beats all or none, the height of the highest; single events have
 * endless ones, which are not tried.
 * @param {Player[]} players @param {string[]} [others] what their captions say besides
 */
export function keepRoom(players, others = []) {
  const [first] = players;
  const told = players.flatMap(({ beats }) => beats.list.map((beat) => beat.caption));
  const [high, low] = first.byBeats
    ? [tallest(first, "zl-story", [...told, ...others]), tallest(first, "zl-sentence", players.flatMap(sentences))]
    : [0, 0];
  for (const { scene } of players) {
    scene.why.style.minHeight = high ? `${high}px` : "";
    scene.sentence.style.minHeight = low ? `${low}px` : "";
  }
}

/**
 * What is said below the captions of all beats.
 * @param {Player} player
 */
export function sentences({ beats, story, model }) {
  return beats.list
    .filter(({ kind }) => kind !== "keep" || !story.steps)
    .map(({ places, last }) => sentenceOf(story, model, places[0] ?? last));
}

/**
 * What is said below the caption of a beat that is about event `i`.
 * @param {Player["story"]} story @param {Player["model"]} model @param {number} i
 */
export function sentenceOf(story, model, i) {
  return story.steps ? story.tell(i) : caption(model, i);
}

/**
 * How high the highest of these texts is where captions stand.
 * @param {Player} player @param {"zl-story" | "zl-sentence"} name @param {string[]} texts
 */
function tallest({ scene }, name, texts) {
  const line = name === "zl-story" ? scene.why : scene.sentence;
  const longest = [...new Set(texts)].sort((a, b) => b.length - a.length).slice(0, TRIED);
  const probes = longest.map((text) => element("p", { class: `${name} zl-probe`, "aria-hidden": "true" }, text));
  for (const probe of probes) probe.style.width = `${line.clientWidth}px`;
  line.after(...probes);
  const heights = probes.map((probe) => probe.offsetHeight);
  for (const probe of probes) probe.remove();
  return Math.max(0, ...heights);
}

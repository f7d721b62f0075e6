// How large the panes are: as high as the window allows, so that the controls stay in view with the picture.

import { entries } from "./events.js";
import { legends } from "./legends.js";
import { keepRoom } from "./room.js";
import { growth } from "./rows.js";
import { shows } from "./views.js";

/** @import { Player } from "./player.js" */

/** The widths in pixels below which the player is laid out differently, by class. */
const NARROWER = { "zl-medium": 1180, "zl-narrow": 720, "zl-tiny": 480 };

/** Up to so many rows the story has room for rows of twice the height. */
const FEW_ROWS = 8;

/** How far the story, and the maps of many ranks, may shrink to avoid scrolling: the least share of their height. */
const LEAST_SHARE = 0.5;
const LEAST_MAPS = 0.3;
/** And rows of memory, of which a little less is better than numbers of the axis cut in half. */
const LEAST_MEMORY = 0.75;

/**
 * Gives the panes their sizes. They are in a box no higher than the window allows: if there is room, rows grow; if
 * there is little, the story's rows shrink; and what still does not fit scrolls there, above the controls.
 * @param {Player} player
 */
export function layOut(player) {
  const { body } = player.scene;
  const { ownership } = player.panes;
  const { named } = ownership;
  for (const [mark, below] of entries(NARROWER)) player.root.classList.toggle(mark, player.width < below);
  if (!player.pair) keepRoom([player]);
  const width = body.clientWidth;
  fit(player);
  // A scroll bar has come or gone, and takes its room from every pane.
  if (body.clientWidth !== width) fit(player);
  // What scrolls can be reached by keyboard, too.
  if (body.scrollHeight > body.clientHeight) body.tabIndex = 0;
  else body.removeAttribute("tabindex");
  if (ownership.named !== named) legends(player);
}

/**
 * How much higher the pictures of some players are than there is room for.
 * @param {Player[]} players
 */
function over(players) {
  return Math.max(...players.map(({ scene: { body } }) => body.scrollHeight - body.clientHeight));
}

/**
 * Shrinks the story's rows, of two players alike, until the pictures fit, or those of memory if they are nearly in; and
 * returns the share of their height that is left, at first `share`. `level` is called after each time.
 * @param {Player[]} players @param {() => void} [level] @param {number} [share]
 */
export function shrink(players, level = () => {}, share = 1) {
  const story = players.every(twice);
  const folded = players.some(({ model }) => model.folded);
  const memory = players.every(({ shown, panes }) => shows(shown, "memory") && panes.memories[0].gutter.named);
  const least = story ? (folded ? LEAST_MAPS : LEAST_SHARE) : memory ? LEAST_MEMORY : 1;
  const [first] = players;
  const shrinks = story ? [first.panes.ownership] : first.panes.memories;
  const drawn = shrinks.reduce((sum, { pen }) => sum + pen.height, 0) / share;
  if (!story && over(players) > drawn * (share - least)) return share; // it scrolls anyhow
  /** @type {(wanted: number) => number} */
  const all = (wanted) => {
    for (const player of players) give(player, wanted);
    level();
    return wanted;
  };
  let now = share;
  // Not all of it shrinks with the rows, such as the units' names, so it may take a second time.
  while (over(players) > 0 && now > least) now = all(Math.max(least, now - (over(players) + 4) / drawn));
  return story || now === share || over(players) <= 0 ? now : all(share);
}

/** @param {Player} player */
function fit(player) {
  const drawn = give(player, player.options.share?.() ?? 1);
  if (player.options.share) return; // its pair finds one for both
  if (over([player]) > 0) {
    shrink([player]);
    return;
  }
  if (!player.options.fill) return; // a page of its own is filled
  // The row in focus does not grow with the maps below it: what is left is theirs, in a second and a third time.
  let grow = 1;
  let high = drawn;
  for (let times = player.model.folded ? 3 : 1; times > 0; times--) {
    const more = growth(player.root, high);
    if (more === 1) return;
    grow *= more;
    high = give(player, grow);
  }
}

/**
 * Whether the story has the window to itself: its rows are twice as high, beside another recording half as much more.
 * @param {Pick<Player, "model" | "shown">} player
 */
function twice({ model, shown }) {
  return shown === "story" && model.whole.length <= FEW_ROWS;
}

/**
 * Draws up the panes with rows `grow` times as high as usual, less than once only the story's and those of memory;
 * returns their heights together.
 * @param {Player} player @param {number} grow
 */
function give({ model, filter, top, scene, shown, options }, grow) {
  const { ownership, timeline, memories, bars } = scene.panes;
  const width = (/** @type {keyof typeof scene.sections} */ name) => scene.sections[name].section.clientWidth;
  const sees = (/** @type {string} */ pane) => shows(shown, pane);
  ownership.layout(
    model,
    width("ownership"),
    filter,
    twice({ model, shown }) ? (options.drawn ? 1.5 : 2) * grow : Math.max(1, grow),
  );
  const last = !sees("memory") || Boolean(model.payload.meta.times_only); // then the axis has its numbers here
  if (sees("timeline")) timeline.layout(model, width("timeline"), Math.max(1, grow), last);
  if (sees("memory"))
    memories.forEach((memory, k) => {
      memory.layout(model, width("memory"), filter, top[k], grow);
    });
  if (sees("bars")) {
    bars.layout(model, width("bars"), ownership, filter, top[0]);
    const { canvas } = bars.pen; // a legend of two lines would shift the rows beside it
    canvas.style.marginTop = "0";
    const tops = [ownership.pen.canvas, canvas].map((one) => one.getBoundingClientRect().top);
    canvas.style.marginTop = `${Math.max(0, tops[0] - tops[1]) / (window.zerolabScale ?? 1)}px`;
  }
  const below = [sees("timeline") ? timeline.pen.height : 0];
  const [beside, owned] = [scene.sections.bars.section.offsetTop, scene.sections.ownership.section.offsetTop];
  if (sees("bars") && beside > owned) below.push(bars.pen.height); // in a narrow window they stand below
  if (sees("memory")) below.push(...memories.map(({ pen }) => pen.height));
  return below.reduce((sum, height) => sum + height, ownership.pen.height);
}

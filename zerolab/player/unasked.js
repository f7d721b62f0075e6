// A player that starts on its own: it plays one step when it first comes into view, and stops at the first touch.

/** @import { Player } from "./player.js" */

/** How much of the picture must be in view; a low window never shows more than that. */
const SEEN = 0.4;

/**
 * Plays one step as soon as the player is in view; never where less motion is asked for.
 * @param {Player} player
 */
export function playUnasked(player) {
  if (player.clock.calm || !player.byBeats) return;
  const { root, beats, clock } = player;
  /** @type {(() => void)[]} */
  const undo = [];
  const over = () => {
    for (const one of undo) one();
  };
  const seen = new IntersectionObserver(
    (entries) => {
      if (!entries.some(({ isIntersecting }) => isIntersecting)) return;
      seen.disconnect();
      player.play();
    },
    { threshold: SEEN },
  );
  seen.observe(player.panes.ownership.pen.canvas);
  undo.push(() => seen.disconnect());
  for (const touch of ["pointerdown", "wheel", "keydown"]) {
    const stop = (/** @type {Event} */ event) => {
      over();
      if (!isToggle(event)) player.pause(); // what plays or pauses by itself would else do it twice
    };
    const where = touch === "keydown" ? (player.options.keyboard ?? root) : root;
    where.addEventListener(touch, stop, { capture: true, passive: true });
    undo.push(() => where.removeEventListener(touch, stop, { capture: true }));
  }
  player.options.moved = () => {
    const place = beats.at(clock.time);
    if (!clock.playing || !beats.ends(place) || clock.time < beats.list[place].t1 - 1) return;
    over();
    player.pause();
  };
  undo.push(() => {
    player.options.moved = undefined;
  });
}

/** @param {Event} event */
function isToggle(event) {
  if (event instanceof KeyboardEvent) return [" ", "k"].includes(event.key);
  return event.type === "pointerdown" && Boolean(/** @type {HTMLElement} */ (event.target).closest(".zl-play"));
}

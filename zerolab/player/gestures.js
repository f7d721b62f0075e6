// The pointer over the panes: hovering, clicking, dragging, wheel and pinch, turned into what the player can do.

/**
 * @import { Player } from "./player.js"
 * @import { Point } from "./types.d.ts"
 */

/** Wheel travel that doubles the zoom. */
const WHEEL_DOUBLES = 300;

/**
 * Where a pointer is within an element, in the element's own pixels, whatever the page is scaled by.
 * @param {HTMLElement} box @param {MouseEvent} event
 */
export function within(box, event) {
  const place = box.getBoundingClientRect();
  const scale = place.width / (box.offsetWidth || 1) || 1;
  return { x: (event.clientX - place.left) / scale, y: (event.clientY - place.top) / scale };
}

/**
 * The gestures of a pane with a time axis. A drag scrubs, a drag with shift pans; the wheel with ctrl, and two fingers,
 * zoom about the pointer; the wheel sideways, or with shift, pans. A plain wheel is left to the page.
 * @param {HTMLElement} box @param {Player} player
 */
export function timeGestures(box, player) {
  /** @type {Map<number, Point>} */
  const fingers = new Map();
  /** @type {number | null} */
  let spread = null;
  /** @type {number | null} */
  let panning = null;
  box.addEventListener(
    "wheel",
    (event) => {
      const { x } = within(box, event);
      if (event.ctrlKey || event.metaKey) player.zoom.by(2 ** (event.deltaY / WHEEL_DOUBLES), x);
      else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
        player.zoom.pan((event.deltaX || event.deltaY) / 600);
      else return;
      event.preventDefault();
    },
    { passive: false },
  );
  box.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, within(box, event));
    panning = event.shiftKey ? within(box, event).x : null;
  });
  box.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) return;
    const { x } = within(box, event);
    if (panning !== null && player.axis) {
      player.zoom.pan((panning - x) / Math.max(1, player.axis.right - player.axis.left));
      panning = x;
    }
    fingers.set(event.pointerId, within(box, event));
    if (fingers.size !== 2) return;
    const [a, b] = [...fingers.values()];
    const apart = Math.max(20, Math.hypot(a.x - b.x, a.y - b.y));
    if (spread) player.zoom.by(spread / apart, (a.x + b.x) / 2);
    spread = apart;
  });
  const lift = (/** @type {PointerEvent} */ event) => {
    fingers.delete(event.pointerId);
    spread = null;
    panning = null;
  };
  box.addEventListener("pointerup", lift);
  box.addEventListener("pointercancel", lift);
  return { busy: () => fingers.size > 1 || panning !== null };
}

/**
 * Calls `moved(point, event)` while a mouse or pen hovers over `box` with no button down, and `left()` when it goes.
 * @param {HTMLElement} box @param {(point: Point, event: PointerEvent) => void} moved @param {() => void} left
 */
export function hover(box, moved, left) {
  box.addEventListener("pointermove", (event) => {
    if (event.buttons === 0 && event.pointerType !== "touch") moved(within(box, event), event);
  });
  box.addEventListener("pointerleave", left);
  box.addEventListener("pointerdown", left);
}

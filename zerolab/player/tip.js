// The tooltip: what the event under the pointer is, in the words of the caption, with its time and its pieces.

import { caption } from "./caption.js";
import { element, say } from "./dom.js";
import { pieceSize } from "./flow.js";
import { duration, exact } from "./format.js";
import { within } from "./gestures.js";

/**
 * @import { Model } from "./model.js"
 * @import { Told } from "./types.d.ts"
 */

/** One small panel of a player that follows the pointer and stays inside the player. */
export class Tip {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    this.head = element("b", {});
    this.text = element("span", {});
    this.foot = element("i", {});
    this.box = element("div", { class: "zl-tip", role: "tooltip", hidden: "" }, this.head, this.text, this.foot);
    root.append(this.box);
    /** @type {number | null} */
    this.index = null;
  }

  /**
   * Shows event `index` beside the pointer.
   * @param {Model} model @param {number} index @param {PointerEvent} pointer
   */
  show(model, index, pointer) {
    const event = model.event(index);
    if (this.index !== index) {
      this.index = index;
      const { step, t0 } = model.windowOf(index);
      const since = duration(Math.max(0, event.start - t0));
      const head = `event ${exact(index + 1)} · ${step ? `step ${step}` : "setup"} · +${since}`;
      const many = event.kind === "collective" && event.parent === null && event.logicalBytes > 0;
      const sent = many ? `${pieceSize(model, event)} to each of the other ranks. ` : "";
      this.#say({ head, text: caption(model, index), foot: `${sent}Click to go there.` });
    }
    this.#place(pointer);
  }

  /**
   * Shows something else than an event beside the pointer.
   * @param {Told} told @param {PointerEvent} pointer
   */
  tell(told, pointer) {
    this.index = null;
    this.#say(told);
    this.#place(pointer);
  }

  /** @param {Told} told */
  #say({ head, text, foot }) {
    say(this.head, head);
    say(this.text, text);
    say(this.foot, foot);
  }

  /** @param {PointerEvent} pointer */
  #place(pointer) {
    this.box.hidden = false;
    const { x, y } = within(this.root, pointer);
    const place = { width: this.root.offsetWidth, height: this.root.offsetHeight };
    const { offsetWidth: width, offsetHeight: height } = this.box;
    this.box.style.left = `${Math.max(4, Math.min(x + 14, place.width - width - 4))}px`;
    this.box.style.top = `${y + height + 26 > place.height ? Math.max(4, y - height - 10) : y + 18}px`;
  }

  hide() {
    this.box.hidden = true;
    this.index = null;
  }
}

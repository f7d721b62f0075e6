// What a notebook runs to show a widget of ours: it fetches the code that draws it from the model beside the widget.
// These few lines are soon ready, and what the kernel says goes to that model: shell.py says why.

/** @import { WidgetModel } from "./types.d.ts" */

/**
 * @param {{ model: { get(name: string): string, widget_manager: { get_model(id: string): Promise<WidgetModel> } },
 *   el: HTMLElement }} given
 */
async function show({ model, el }) {
  const told = await model.widget_manager.get_model(model.get("_told").replace("IPY_MODEL_", ""));
  const address = URL.createObjectURL(new Blob([told.get("script")], { type: "text/javascript" }));
  try {
    /** @type {{ default: { render(given: { model: WidgetModel, el: HTMLElement }): unknown } }} */
    const { default: code } = await import(address);
    return code.render({ model: told, el });
  } finally {
    URL.revokeObjectURL(address);
  }
}

export default { render: show };

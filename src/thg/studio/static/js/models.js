// The picker of models: those that thg ships, and those below the folder that the studio was started with.

import { get, stream } from "./api.js";

const $ = (id) => document.getElementById(id);

export async function offerModels(model, say) {
  const names = await get("/api/models");
  const picker = $("models");
  picker.replaceChildren(...names.map((name) => new Option(name, name, false, name === model.key)));
  picker.hidden = names.length < 2;
  picker.addEventListener("change", async () => {
    picker.disabled = true;
    say(`loading ${picker.value}`);
    try {
      await stream("/api/model", { name: picker.value }, () => {});
      location.assign("/"); // the settings in the link are of the other model
    } catch (error) {
      say(error.message, true);
      picker.value = model.key;
      picker.disabled = false;
    }
  });
}

// Downloads: the pictures, both sides in one, the plan, the Python script that makes them, the link.

import { sideBySide } from "./sheet.js";

const $ = (id) => document.getElementById(id);
const EXTENSIONS = { "image/png": "png", "audio/wav": "wav" };

export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function saveMedia(result) {
  result.sides.thg.items.forEach((item, index) => {
    const seed = result.settings.seed + index;
    item.blobs.forEach((blob, frame) => {
      const number = item.blobs.length > 1 ? `-${String(frame).padStart(3, "0")}` : "";
      save(blob, `thg-${seed}${number}.${EXTENSIONS[blob.type]}`);
    });
  });
}

const ACTIONS = {
  picture: saveMedia,
  both: async (result) => save(await sideBySide(result), `plain-and-thg-${result.settings.seed}.png`),
  plan: (result) => save(new Blob([`${JSON.stringify(result.plan.plan)}\n`], { type: "application/json" }), "plan.json"),
  script: (result) => save(new Blob([result.script], { type: "text/x-python" }), "reproduce.py"),
};

export class Downloads {
  constructor(say) {
    this.result = null;
    $("downloads").addEventListener("click", async (event) => {
      const wanted = event.target.closest("button")?.dataset.get;
      if (wanted === "link") {
        try {
          await navigator.clipboard.writeText(location.href);
          say("The link is on the clipboard.");
        } catch {
          say("The browser does not let this page write to the clipboard; the link is in the address bar.");
        }
      } else if (wanted && this.result) {
        ACTIONS[wanted](this.result);
      }
    });
  }

  show(result) {
    this.result = result;
    const pictures = result?.sides.thg.items[0].kind === "image";
    for (const button of $("downloads").children) {
      button.disabled = button.dataset.get === "both" ? !pictures : button.dataset.get !== "link" && !result;
    }
    const names = { image: "Picture", audio: "Sound", video: "Frames" };
    $("downloads").firstElementChild.textContent = names[result?.sides.thg.items[0].kind ?? "image"];
  }
}

// The picture to start from: chosen or dropped, shown small, removed.

import { previewOf, showImage } from "./media.js";

const $ = (id) => document.getElementById(id);
const LARGEST = 16 * 2 ** 20; // bytes
const USUAL = 0.6;

const read = (file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result.split(",")[1]);
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(file);
});

export class Start {
  // `changed(settings)` is called with what is different when the user has changed something; `say` tells the user.
  constructor(model, settings, changed, say) {
    Object.assign(this, { settings, changed, say });
    $("start").hidden = !model.from_picture;
    $("start-choose").addEventListener("click", () => $("start-file").click());
    $("start-file").addEventListener("change", () => this.take($("start-file").files[0]));
    $("start-remove").addEventListener("click", () => changed({ image: null, image_name: "", strength: null }));
    $("strength").addEventListener("change", () => {
      if ($("strength").checkValidity()) changed({ strength: Number($("strength").value) });
    });
    this.show();
  }

  async take(file) {
    $("start-file").value = "";
    if ($("start").hidden) return this.say("This model cannot start from a picture.");
    if (!/^image\/(png|jpeg|webp)$/.test(file?.type)) return this.say("Drop a picture (PNG, JPEG or WebP) to start from it.");
    if (file.size > LARGEST) return this.say("The picture has more than 16 megabytes: make it smaller.");
    this.changed({ image: await read(file), image_name: file.name, strength: this.settings.strength ?? USUAL });
    return this.say("Runs start from this picture now.");
  }

  show() {
    const { image, image_name, strength } = this.settings;
    $("start-choose").hidden = Boolean(image);
    $("start-chosen").hidden = !image;
    if (!image) return;
    $("start-name").textContent = image_name;
    $("strength").value = strength;
    showImage($("start-picture"), previewOf(image).blobs[0]);
  }
}

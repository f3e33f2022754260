// Pictures, sounds and frames as elements. A result holds blobs; a URL lives until its picture is there, or as long as
// its sound can be played.

import { fillRange } from "./budget.js";

const TYPES = { image: "image/png", audio: "audio/wav", video: "image/png" };

function blob(base64, type) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  return new Blob([bytes], { type });
}

// An item as the server sends it, with its files as blobs. `picture`: the spectrogram of a sound.
export function received({ kind, rate, files, spectrogram }) {
  const blobs = files.map((file) => blob(file, TYPES[kind]));
  return { kind, rate, blobs, ...(spectrogram && { picture: blob(spectrogram, "image/png") }) };
}

export const previewOf = (base64) => ({ kind: "image", blobs: [blob(base64, "image/png")] });

// Shows a blob in an image without a flicker: the old picture stays until the new one is there.
export function showImage(image, file) {
  const url = URL.createObjectURL(file);
  image.src = url;
  image.decode()
    .then(() => image.classList.toggle("coarse-pixels", image.naturalWidth <= 128))
    .catch(() => { /* the next picture came first */ })
    .finally(() => URL.revokeObjectURL(url));
}

export function freeSounds(container) {
  for (const sound of container.querySelectorAll("audio")) {
    const url = sound.src;
    sound.removeAttribute("src");
    sound.load(); // no longer reads it
    URL.revokeObjectURL(url);
  }
}

function imageOf(file, label) {
  const image = new Image();
  image.alt = label;
  image.draggable = false;
  showImage(image, file);
  return image;
}

function soundOf({ blobs, picture }, label) {
  const sound = document.createElement("audio");
  sound.controls = true;
  sound.setAttribute("aria-label", label);
  sound.src = URL.createObjectURL(blobs[0]);
  return [imageOf(picture ?? blobs[0], `spectrogram of ${label}`), sound];
}

// Frames: one image at a time, with a play button and a slider.
function framesOf(item, label) {
  const image = imageOf(item.blobs[0], label);
  const bar = document.createElement("div");
  bar.className = "player";
  const button = Object.assign(document.createElement("button"), { type: "button", textContent: "Play" });
  const slider = Object.assign(document.createElement("input"), { type: "range", min: 0, max: item.blobs.length - 1, value: 0 });
  slider.setAttribute("aria-label", `frame of ${label}`);
  bar.append(button, slider);
  const show = () => {
    showImage(image, item.blobs[slider.value]);
    slider.setAttribute("aria-valuetext", `${Number(slider.value) + 1} of ${item.blobs.length}`);
    fillRange(slider);
  };
  let timer = null;
  button.addEventListener("click", () => {
    button.textContent = timer ? "Play" : "Pause";
    timer = timer ? clearInterval(timer) : setInterval(() => {
      if (!image.isConnected) return clearInterval(timer);
      slider.value = (Number(slider.value) + 1) % item.blobs.length;
      show();
    }, 1000 / item.rate);
  });
  slider.addEventListener("input", show);
  fillRange(slider);
  return [image, bar];
}

export function elementsOf(item, label) {
  if (item.kind === "audio") return soundOf(item, label);
  if (item.kind === "video") return framesOf(item, label);
  return [imageOf(item.blobs[0], label)];
}

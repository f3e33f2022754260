// Sheets of pictures, drawn here and saved as one PNG: both sides of a run, or a grid of runs.

import { decibels } from "./stage.js";

const CELL = 256;
const HEAD = 44;

async function drawn(cells, columns, heads, rows = [], captions = []) {
  const side = rows.length ? 96 : 0;
  const canvas = new OffscreenCanvas(side + columns * CELL, HEAD + Math.ceil(cells.length / columns) * CELL);
  const context = canvas.getContext("2d");
  context.fillStyle = "#ffffff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = "#14161d";
  context.font = "14px system-ui, sans-serif";
  heads.forEach((lines, i) => lines.forEach((line, j) => context.fillText(line, side + i * CELL + 6, 17 + 18 * j, CELL - 12)));
  rows.forEach((text, i) => context.fillText(text, 6, HEAD + i * CELL + CELL / 2, side - 12));
  for (const [i, item] of cells.entries()) {
    const bitmap = await createImageBitmap(item.blobs[0]);
    const scale = CELL / Math.max(bitmap.width, bitmap.height);
    const [width, height] = [bitmap.width * scale, bitmap.height * scale];
    const [x, y] = [side + (i % columns) * CELL, HEAD + Math.floor(i / columns) * CELL];
    context.imageSmoothingEnabled = scale < 1;
    context.drawImage(bitmap, x + (CELL - width) / 2, y + (CELL - height) / 2, width, height);
    if (captions[i]) caption(context, captions[i], x, y + CELL);
  }
  return canvas.convertToBlob({ type: "image/png" });
}

// White on dark, at the lower left of a picture.
function caption(context, text, x, bottom) {
  context.font = "13px system-ui, sans-serif";
  context.fillStyle = "#14161d";
  context.fillRect(x + 6, bottom - 28, context.measureText(text).width + 14, 22);
  context.fillStyle = "#ffffff";
  context.fillText(text, x + 13, bottom - 12);
}

// A row for each seed, plain CFG beside thg.
export function sideBySide({ sides }) {
  const names = { plain: "Plain CFG", thg: "thg", fewer: "Plain CFG, fewer steps" };
  const shown = Object.keys(names).filter((name) => sides[name]);
  const heads = shown.map((name) => [names[name], `${sides[name].nfe} evaluations, ${sides[name].seconds.toFixed(2)} s`]);
  return drawn(sides.thg.items.flatMap((_, i) => shown.map((name) => sides[name].items[i])), shown.length, heads);
}

// Steps across, targets down. `results[row][column]` are finished runs.
export function grid(results, steps, targets) {
  const heads = steps.map((count, i) => [`${count} steps`, results[0][i].settings.prompt]);
  const runs = results.flat();
  const captions = runs.map(({ sides, psnr }) => `${sides.thg.nfe} of ${sides.plain.nfe} · ${decibels(psnr[0])}`);
  return drawn(runs.map(({ sides }) => sides.thg.items[0]), steps.length, heads, targets, captions);
}

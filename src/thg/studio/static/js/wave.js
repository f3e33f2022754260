// The shape of a sound: its loudest sample in each of a number of bars. The server's WAV files have 16 bits a sample.

const HEADER = 44; // bytes
const BARS = 64;

async function loudest(file) {
  const samples = new Int16Array((await file.arrayBuffer()).slice(HEADER));
  const span = Math.max(1, samples.length / BARS);
  return Array.from({ length: BARS }, (_, bar) => {
    let peak = 0;
    for (let i = Math.floor(bar * span); i < Math.min(samples.length, (bar + 1) * span); i += 1) {
      peak = Math.max(peak, Math.abs(samples[i]));
    }
    return peak;
  });
}

export function waveOf(file) {
  const wave = document.createElement("div");
  wave.className = "wave";
  wave.setAttribute("aria-hidden", "true");
  loudest(file).then((peaks) => {
    const top = Math.max(1, ...peaks);
    wave.replaceChildren(...peaks.map((peak) => {
      const bar = document.createElement("i");
      bar.style.height = `${Math.max(2, (100 * peak) / top)}%`;
      return bar;
    }));
  });
  return wave;
}

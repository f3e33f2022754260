// Talking to the studio's server. Errors carry a message that can be shown as it is.

export class ServerError extends Error {}
export class Away extends ServerError {}

async function checked(response) {
  if (response.ok) return response;
  let message = `the server answered ${response.status}`;
  try {
    const text = await response.text();
    message = text.startsWith("{") ? JSON.parse(text).message : text || message;
  } catch { /* an answer without a body keeps the plain message */ }
  throw new ServerError(message);
}

async function send(path, options) {
  try {
    return await checked(await fetch(path, options));
  } catch (error) {
    if (error instanceof TypeError) throw new Away("the studio does not answer; is it still running?");
    throw error;
  }
}

export async function get(path) {
  return (await send(path)).json();
}

function posted(body, signal) {
  return { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal };
}

export async function post(path, body, signal) {
  return (await send(path, posted(body, signal))).json();
}

// Work on the server; `on(name, data)` is called for each event. Aborting the signal also ends the work.
export async function stream(path, request, on, signal) {
  const response = await send(path, posted(request, signal));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      throw signal?.aborted ? error : new ServerError("the connection to the studio was lost in the middle of the run");
    });
    if (done) throw new ServerError("the studio stopped in the middle of the run");
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      const found = /^event: (\w+)\ndata: (.*)$/s.exec(event);
      if (!found) continue;
      const [, name, data] = found;
      on(name, JSON.parse(data));
      if (name === "done") return;
      if (name === "failed") throw new ServerError(JSON.parse(data).message);
    }
  }
}

// Shows the output of the report node on the node: when it is executed, when it is taken from the server's cache, and
// after the page was loaded anew. Works on both canvases.

import { app } from "../../scripts/app.js";
import { api } from "../../scripts/api.js";

const TYPE = "TortoiseHareReport";
const HEIGHT = 132;
const RUNS = 32; // of the server's history to look through
const COLOURS = { evaluated: "#3fb883", predicted: "#7a8090" };

function element(parent, style, text = "") {
  const made = document.createElement("div");
  Object.assign(made.style, style);
  made.textContent = text;
  parent?.append(made);
  return made;
}

function drawn(report, { headline = [""], strip = [], details = [""] }) {
  report.replaceChildren();
  element(report, { fontSize: "17px", fontWeight: "600", lineHeight: "1.25" }, headline[0]).dataset.part = "headline";
  const bars = element(report, { display: "flex", alignItems: "flex-end", height: "26px", flex: "none" });
  bars.dataset.part = "strip";
  bars.title = "one bar for each call of the network: tall where it ran, short where its output was predicted";
  for (const runs of strip) {
    element(bars, {
      flex: "1 1 0",
      minWidth: "0",
      marginRight: strip.length > 120 ? "0" : "1px",
      height: runs ? "100%" : "40%",
      background: runs ? COLOURS.evaluated : COLOURS.predicted,
    });
  }
  const rest = { fontSize: "12px", lineHeight: "1.35", opacity: "0.8", whiteSpace: "pre-wrap" };
  element(report, rest, details[0]).dataset.part = "details";
}

function addReport(node) {
  const report = element(null, {
    display: "flex",
    flexDirection: "column",
    gap: "6px",
    height: "100%",
    padding: "8px 10px",
    boxSizing: "border-box",
    overflow: "auto",
    userSelect: "text",
    color: "var(--input-text)",
    background: "var(--comfy-input-bg)",
    borderRadius: "6px",
    fontFamily: "sans-serif",
  });
  report.dataset.testid = "tortoise-hare-report";
  element(report, { opacity: "0.6", fontSize: "12px" }, "Run the workflow: the report appears here and stays.");
  const options = { serialize: false, hideOnZoom: false, getMinHeight: () => HEIGHT };
  const widget = node.addDOMWidget("report", "tortoise_hare_report", report, options);
  widget.serialize = false;
  const { onExecuted } = node;
  node.onExecuted = function (output) {
    onExecuted?.apply(this, arguments);
    if (output?.headline) drawn(report, output);
  };
}

function* reportNodes(graph, prefix = "") {
  for (const node of graph?.nodes ?? graph?._nodes ?? []) {
    if (node.comfyClass === TYPE) yield [prefix + node.id, node];
    if (node.subgraph) yield* reportNodes(node.subgraph, `${prefix}${node.id}:`);
  }
}

// What the server still knows of the last runs of this workflow.
async function restore() {
  const graph = app.rootGraph ?? app.graph;
  const nodes = [...reportNodes(graph)];
  if (!nodes.length) return;
  const answer = await api.fetchApi(`/history?max_items=${RUNS}`);
  if (!answer.ok) return;
  const runs = Object.values(await answer.json())
    .filter((run) => run.prompt[3]?.extra_pnginfo?.workflow?.id === graph.id)
    .sort((a, b) => b.prompt[0] - a.prompt[0]);
  for (const [id, node] of nodes) {
    const output = runs.map((run) => run.outputs?.[id]).find((output) => output?.headline);
    if (output) node.onExecuted(output);
  }
}

app.registerExtension({
  name: "TortoiseHareGuidance.Report",
  nodeCreated(node) {
    if (node.comfyClass === TYPE) addReport(node);
  },
  async afterConfigureGraph() {
    await restore();
  },
});

// Draws the memory graph from data: shapes are made one by one and texts go in as text, so nothing that a model says is
// ever read as markup. Nodes keep their elements from one drawing to the next; a node that moves glides to its place.
const SVG = "http://www.w3.org/2000/svg";
const drawn = new WeakMap();

function make(parent, name, attributes = {}, text = null) {
  const element = document.createElementNS(SVG, name);
  set(element, attributes);
  if (text !== null) element.textContent = text;
  parent.appendChild(element);
  return element;
}

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
}

function markOf(parent, node, x, y) {
  make(parent, "path", { class: "mark", d: node.mark, transform: `translate(${x} ${y})` });
}

function fill(group, node) {
  group.replaceChildren();
  const left = -node.width / 2, top = -node.height / 2;
  make(group, "title", {}, node.about);
  make(group, "rect", { class: "paper", x: left, y: top, width: node.width, height: node.height, rx: 10 });
  make(group, "rect", { class: "box", x: left, y: top, width: node.width, height: node.height, rx: 10 });
  make(group, "rect", { class: "ring", x: left - 5, y: top - 5, width: node.width + 10, height: node.height + 10, rx: 14 });
  markOf(group, node, node.width / 2 - 26, top + 9);
  make(group, "text", { class: "title", x: left + 12, y: top + 22 }, node.title);
  node.lines.forEach((line, row) => make(group, "text", { class: "line", x: left + 12, y: top + 41 + 15 * row }, line));
}

function legend(stage, rows) {
  const list = document.createElement("div");
  list.className = "legend";
  for (const row of rows) {
    const entry = document.createElement("span");
    const sign = make(entry, "svg", { viewBox: "-2 -2 20 20", class: `sign ${row.state}`, "aria-hidden": "true" });
    make(sign, "rect", { class: "box", x: -1, y: -1, width: 18, height: 18, rx: 4 });
    make(sign, "path", { class: "mark", d: row.mark });
    entry.append(row.name);
    list.appendChild(entry);
  }
  stage.appendChild(list);
}

function begin(parentElement, data) {
  const stage = parentElement.querySelector(".stage");
  stage.replaceChildren();
  const scroll = document.createElement("div");
  scroll.className = "scroll";
  stage.appendChild(scroll);
  const svg = make(scroll, "svg", { role: "group" });
  const state = { svg, edges: make(svg, "g"), nodes: make(svg, "g"), groups: new Map(), lines: new Map() };
  legend(stage, data.legend);
  drawn.set(parentElement, state);
  return state;
}

function draw(state, data, pick) {
  set(state.svg, { viewBox: `0 0 ${data.width} ${data.height}`, "aria-label": data.label });
  state.svg.style.setProperty("--natural", `${data.width}px`);
  const edges = new Set(data.edges.map((edge) => edge.id));
  for (const [id, group] of state.lines) if (!edges.has(id)) { group.remove(); state.lines.delete(id); }
  for (const edge of data.edges) {
    let group = state.lines.get(edge.id);
    if (!group) {
      group = make(state.edges, "g");
      make(group, "path", { class: "line" });
      make(group, "path", { class: "tip" });
      state.lines.set(edge.id, group);
    }
    set(group, { class: `edge ${edge.look}` });
    set(group.children[0], { d: edge.line });
    set(group.children[1], { d: edge.tip });
    state.edges.appendChild(group);  // in the order of the data: the critical path on top
  }
  const nodes = new Set(data.nodes.map((node) => node.id));
  for (const [id, group] of state.groups) if (!nodes.has(id)) { group.remove(); state.groups.delete(id); }
  for (const node of data.nodes) {
    let group = state.groups.get(node.id);
    if (!group) {
      group = make(state.nodes, "g", { role: "button", tabindex: "0" });
      group.addEventListener("click", () => pick(state, node.id));
      group.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        pick(state, node.id);
      });
      state.groups.set(node.id, group);
    }
    const now = JSON.stringify(node);
    if (group.said !== now) {
      group.said = now;
      fill(group, node);
      set(group, { "aria-label": node.about, "data-node": node.id, "data-state": node.state });
      group.style.transform = `translate(${node.x}px, ${node.y}px)`;
    }
    mark(group, node.state, node.kind, node.id === data.selected);
  }
}

function mark(group, state, kind, chosen) {
  set(group, { class: `node ${state} ${kind}${chosen ? " chosen" : ""}`, "aria-pressed": String(chosen) });
}

export default function ({ data, parentElement, setTriggerValue }) {
  const state = drawn.get(parentElement) ?? begin(parentElement, data);
  // The newest way back to the page; the listeners of old nodes use it as well.
  state.send = (id) => setTriggerValue("picked", id);
  draw(state, data, (own, id) => {
    for (const [name, group] of own.groups) {
      group.classList.toggle("chosen", name === id);
      group.setAttribute("aria-pressed", String(name === id));
    }
    own.send(id);
  });
}

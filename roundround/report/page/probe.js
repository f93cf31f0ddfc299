// A probe: the map of heads, and what is shown of the chosen one.

const map = document.getElementById("map");
const cells = new Map(Array.from(map.querySelectorAll("[data-head]"), (button) => [button.dataset.head, button]));
const readouts = Object.fromEntries(
  Array.from(document.querySelectorAll("[data-card]"), (card) => [card.dataset.card, card.querySelector(".readout")]),
);
const withoutFirst = document.getElementById("without-first");
let chosen = null;
let row = null; // of the prompt

// -- the map

function choose(name) {
  for (const button of cells.values()) {
    button.tabIndex = -1;
    button.removeAttribute("aria-current");
  }
  const button = cells.get(name);
  button.tabIndex = 0;
  button.setAttribute("aria-current", "true");
  chosen = name;
  drawHead();
}

const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

map.addEventListener("keydown", function (event) {
  const step = STEPS[event.key];
  const here = event.target.dataset.head;
  if (!step || here === undefined) return;
  const [layer, head] = here.split(".").map(Number);
  const next = cells.get(`${layer + step[0]}.${head + step[1]}`);
  if (next) {
    for (const button of cells.values()) button.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }
  event.preventDefault();
});
map.addEventListener("click", function (event) {
  const button = event.target.closest("[data-head]");
  if (button) choose(button.dataset.head);
});

for (const button of document.querySelectorAll("[data-place]")) {
  button.addEventListener("click", function () {
    const on = button.getAttribute("aria-pressed") !== "true";
    for (const other of document.querySelectorAll("[data-place]")) other.setAttribute("aria-pressed", "false");
    button.setAttribute("aria-pressed", String(on));
    for (const [name, cell] of cells) cell.classList.toggle("dim", on && data.heads[name].label !== button.dataset.place);
  });
}

const measure = document.getElementById("measure");

function colourMap() {
  const key = measure.value;
  const values = Object.values(data.heads).map((head) => head[key]).filter((value) => typeof value === "number");
  const most = Math.max(...values, 1e-12);
  document.getElementById("scale").hidden = key === "";
  document.getElementById("of-labels").hidden = key !== "";
  document.getElementById("most").textContent = `${shown(most)} (${measure.selectedOptions[0].textContent})`;
  for (const [name, cell] of cells) {
    const value = key ? data.heads[name][key] : data.heads[name].share;
    cell.classList.toggle("measured", key !== "");
    cell.style.setProperty("--share", key ? (value || 0) / most : value);
    const number = cell.querySelector("span");
    if (number) number.textContent = key ? shown(value) : value.toFixed(2);
  }
}

if (measure) measure.addEventListener("change", colourMap);

// -- one head

function part(name) {
  return (data.parts[name] || {})[chosen];
}

function card(name, there, draw) {
  const figure = document.querySelector(`[data-card="${name}"]`);
  const known = Object.keys(data.parts[name] || {}).length > 0;
  figure.hidden = !there && !known;
  if (readouts[name]) readouts[name].textContent = "";
  if (there) draw();
  else if (known) {
    const place = figure.querySelector("#tokens, #norms, #logits");
    place.replaceChildren("left out of this page, which would be too large; the arrays of the run have it");
    if (name === "prompt") document.getElementById("triangle").replaceChildren();
  }
}

function drawHead() {
  const [layer, head] = chosen.split(".").map(Number);
  const about = data.heads[chosen];
  document.getElementById("panel").hidden = false;
  document.getElementById("head-title").textContent =
    `Layer ${layer}, head ${head}: ${about.label}, ${about.share.toFixed(2)} of the weight`;
  const numbers = { entropy: "entropy (nats)", largest_weight: "largest weight", logit_spread: "logit spread (nats)", gap_counting: "gap counting number", collapsed: "share of collapsed rows", change: "weight that goes elsewhere" };
  const list = Object.entries(numbers).filter(([key]) => key in about);
  document.getElementById("head-numbers").replaceChildren(
    ...list.map(([key, name]) => html("div", {}, html("dt", {}, name), html("dd", {}, shown(about[key])))),
  );
  card("prompt", part("prompt"), drawPrompt);
  card("shares", true, drawShares);
  card("norms", part("norms"), () => drawNorms(layer, head));
  card("logits", part("logits"), () => drawLogits(layer));
}

function wavelength(layer, pair) {
  const frequency = ((data.frequencies || [])[layer] || [])[pair];
  if (!frequency) return frequency === 0 ? ", does not rotate" : "";
  return `, turns once in ${shown((2 * Math.PI) / frequency)} tokens`;
}

function drawShares() {
  const bars = Object.entries(data.shares[chosen]).map(([band, shares]) => [band, shares.map((share) => share / 1000)]);
  const [barHeight, step] = [24, 46];
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${bars.length * step}`, role: "img" });
  const words = [];
  bars.forEach(function ([band, shares], i) {
    const y = i * step + 18;
    picture.append(svg("g", { class: "ticks" }, svg("text", { x: 1, y: y - 5 }, band)));
    let x = 0;
    shares.forEach(function (share, number) {
      const width = share * WIDTH;
      const text = `${band}: ${data.places[number]} ${shown(share)}`;
      picture.append(svg("rect", { x: x, y: y, width: width, height: barHeight, class: `p${number} bar` }, svg("title", {}, text)));
      const label = width > 78 ? data.places[number] : width > 40 ? share.toFixed(3) : "";
      picture.append(svg("text", { x: x + width / 2, y: y + 16, class: "inbar", "text-anchor": "middle" }, label));
      x += width;
    });
    const best = shares.indexOf(Math.max(...shares));
    words.push(`${band}: ${data.places[best]} ${shown(shares[best])}`);
  });
  picture.setAttribute("aria-label", "Shares of the weight by place. Most of it, " + words.join("; "));
  const legend = html("ul", { class: "legend" });
  data.places.forEach(function (place, number) {
    const share = bars[0][1][number];
    legend.append(html("li", {}, html("i", { class: `p${number} swatch` }), `${place} ${share.toFixed(3)}`));
  });
  document.getElementById("shares").replaceChildren(picture, legend);
}

function drawNorms(layer, head) {
  const key = withoutFirst.checked && "query_norm_without_first" in part("norms") ? "_without_first" : "";
  const heads = ((data.keys || {})["key_norm" + key] || [])[layer] || [];
  const keyHead = heads.length ? Math.floor((head * heads.length) / data.keys.n_heads[layer]) : 0;
  const rows = [{ name: "query", packed: part("norms")["query_norm" + key] }];
  if (heads.length) rows.push({ name: heads.length < data.keys.n_heads[layer] ? `key (key head ${keyHead})` : "key", packed: heads[keyHead] });
  const n = rows[0].packed.steps.length;
  const read = (i) => (readouts.norms.textContent = `pair ${i}${wavelength(layer, i)}: ` + rows.map((row) => `${row.name} ${shown(valueAt(row.packed, i))}`).join(", "));
  const strongest = rows[0].packed.steps.indexOf(Math.max(...rows[0].packed.steps));
  document.getElementById("norms").replaceChildren(heatMap({
    rows: rows.length, columns: n, xName: "pair, from the fastest to the slowest", yName: "",
    rowLabel: (r) => (r ? "key" : "query"), columnLabel: String, share: (r, c) => rows[r].packed.steps[c] / 999,
    alt: `Mean norm of the 2-D chunks of queries and keys. The query is longest at pair ${strongest}${wavelength(layer, strongest)}.`,
    read: (r, c) => read(c),
  }));
  read(strongest);
}

withoutFirst.addEventListener("change", drawHead);

function drawLogits(layer) {
  const packed = part("logits");
  const distances = packed.columns.map((place) => (data.distances ? data.distances[place] : place));
  const n = distances.length;
  const value = (r, c) => valueAt(packed, r * n + c);
  const read = (r, c) => (readouts.logits.textContent = `pair ${r}${wavelength(layer, r)}, distance ${distances[c]}: ${shown(value(r, c))} nats`);
  document.getElementById("logits").replaceChildren(heatMap({
    rows: packed.rows, columns: n, xName: "distance (tokens)", yName: "pair",
    rowLabel: String, columnLabel: (c) => String(distances[c]),
    share: (r, c) => (packed.steps[r * n + c] === null ? null : packed.steps[r * n + c] / 999),
    alt: `Mean contribution of each pair to the logit at each distance; the largest is ${shown(packed.largest)} nats.`,
    read: read,
  }));
  readouts.logits.textContent = `blue adds to the logit, orange takes away; the strongest colour is ${shown(packed.largest)} nats`;
}

// -- the prompt

function weight(query, key) {
  return key > query ? null : part("prompt")[(query * (query + 1)) / 2 + key] / 1000;
}

function drawPrompt() {
  const n = data.words.length;
  const tokens = document.getElementById("tokens");
  if (tokens.querySelectorAll("button").length !== n) {
    tokens.replaceChildren(...data.words.map((word, i) => html("button", { type: "button", "data-token": i }, html("span", {}, word), html("small", {}))));
  }
  document.getElementById("triangle").replaceChildren(heatMap({
    rows: n, columns: n, square: true, left: 92, xName: "key", yName: "query",
    rowLabel: (r) => data.words[r].slice(0, 9), columnLabel: (c) => (c ? "" : data.words[0].slice(0, 9)),
    share: weight, alt: "Weights of the prompt: a row for each query, a column for each key. " + rowInWords(n - 1),
    read: showRow,
  }));
  showRow(row === null ? n - 1 : Math.min(row, n - 1));
}

function rowInWords(query) {
  const keys = Array.from({ length: query + 1 }, (_, key) => key).sort((a, b) => weight(query, b) - weight(query, a));
  const best = keys.slice(0, 3).filter((key) => weight(query, key) >= 0.01);
  return `${data.words[query]} (${query}): ` + best.map((key) => `${weight(query, key).toFixed(3)} on ${data.words[key]} (${key})`).join(", ");
}

function showRow(query) {
  row = query;
  document.querySelectorAll("[data-token]").forEach(function (button, key) {
    const share = weight(query, key);
    button.setAttribute("aria-pressed", String(key === query));
    button.style.setProperty("--share", share === null ? 0 : share);
    button.classList.toggle("later", share === null);
    button.querySelector("small").textContent = share === null || share < 0.0005 ? "\u00a0" : share.toFixed(3);
  });
  for (const rect of document.querySelectorAll("#triangle [data-row]")) rect.classList.toggle("row", Number(rect.dataset.row) === query);
  document.getElementById("row").textContent = rowInWords(query);
}

for (const kind of ["pointerover", "focusin", "click"]) {
  document.getElementById("tokens").addEventListener(kind, function (event) {
    const button = event.target.closest("[data-token]");
    if (button) showRow(Number(button.dataset.token));
  });
}

// -- all layers

function drawOverview() {
  const kinds = Object.entries(data.overview || {});
  document.getElementById("overview").hidden = kinds.length === 0;
  for (const [kind, packed] of kinds) {
    const readout = html("p", { class: "readout" });
    const value = (pair, layer) => valueAt(packed, layer * packed.columns + pair);
    const picture = heatMap({
      rows: packed.columns, columns: packed.rows, xName: "layer", yName: "pair", rowLabel: String, columnLabel: String,
      share: (pair, layer) => { const step = packed.steps[layer * packed.columns + pair]; return step === null ? null : step / 999; },
      alt: `Mean norm of each pair of the ${kind} vectors in every layer; the largest is ${shown(packed.largest)}.`,
      read: (pair, layer) => (readout.textContent = `layer ${layer}, pair ${pair}${kind === "value" ? "" : wavelength(layer, pair)}: ${shown(value(pair, layer))}`),
    });
    readout.textContent = `the strongest colour is ${shown(packed.largest)}`;
    document.getElementById("overview-charts").append(html("figure", { class: "chart" }, html("figcaption", {}, `${kind} norms`), picture, readout));
  }
}

drawOverview();
choose(data.first);

// Heat maps that a choice on the page draws anew, as SVG in the page's colours.

const SVG = document.getElementById("namespace").namespaceURI;
const data = JSON.parse(document.getElementById("data").textContent);
const WIDTH = 440;

function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function html(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function shown(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  if (value !== 0 && (Math.abs(value) < 0.001 || Math.abs(value) >= 1e6)) return value.toExponential(2);
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
}

// Integers from -999 to 999 are shares of the largest value (numbers.py, scaled).
function valueAt(packed, place) {
  const step = packed.steps[place];
  return step === null ? null : (step / 999) * packed.largest;
}

function every(n, most) {
  const step = Math.max(1, Math.ceil(n / most));
  return Array.from({ length: Math.ceil(n / step) }, (_, i) => i * step);
}

// share(row, column): from -1 to 1, or null. text(row, column): what is read of a cell.
function heatMap(map) {
  const [left, top, bottom] = [map.left || 56, 8, 40];
  const cellWidth = (WIDTH - left - 6) / map.columns;
  const cellHeight = map.square ? cellWidth : Math.min(34, Math.max(2.2, 230 / map.rows));
  const height = top + map.rows * cellHeight + bottom;
  const cells = svg("g", {});
  for (let row = 0; row < map.rows; row++) {
    for (let column = 0; column < map.columns; column++) {
      const share = map.share(row, column);
      if (share === null) continue;
      cells.append(
        svg("rect", {
          x: (left + column * cellWidth).toFixed(2),
          y: (top + row * cellHeight).toFixed(2),
          width: (cellWidth + 0.15).toFixed(2),
          height: (cellHeight + 0.15).toFixed(2),
          class: share < 0 ? "low" : "high",
          "fill-opacity": Math.abs(share).toFixed(3),
          "data-row": row,
          "data-column": column,
        }),
      );
    }
  }
  const frame = svg("rect", { class: "frame", x: left, y: top, width: map.columns * cellWidth, height: map.rows * cellHeight });
  const ticks = svg("g", { class: "ticks" });
  for (const row of every(map.rows, map.square ? Math.floor((map.rows * cellHeight) / 13) : 12)) {
    const y = top + (row + 0.5) * cellHeight + 4;
    ticks.append(svg("text", { x: left - 5, y: y, "text-anchor": "end" }, map.rowLabel(row)));
  }
  for (const column of every(map.columns, map.square ? 1 : 9)) {
    const x = left + (column + 0.5) * cellWidth;
    ticks.append(svg("text", { x: x, y: height - bottom + 15, "text-anchor": "middle" }, map.columnLabel(column)));
  }
  const names = svg("g", { class: "names" },
    svg("text", { x: left + (WIDTH - left) / 2, y: height - 7, "text-anchor": "middle" }, map.xName),
    svg("text", { transform: `translate(11 ${top + (map.rows * cellHeight) / 2}) rotate(-90)`, "text-anchor": "middle" }, map.yName));
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${height.toFixed(1)}`, role: "img", "aria-label": map.alt }, frame, cells, ticks, names);
  if (map.read) {
    picture.addEventListener("pointermove", function (event) {
      const { row, column } = event.target.dataset;
      if (row !== undefined) map.read(Number(row), Number(column));
    });
  }
  return picture;
}

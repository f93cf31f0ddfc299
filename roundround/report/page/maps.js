// Max retrieval: the attention at one number of items, chosen with the slider.

const slider = document.getElementById("size");

function drawSize() {
  const n = data.sizes[Number(slider.value)];
  document.getElementById("size-shown").textContent = n.toLocaleString("en");
  slider.setAttribute("aria-valuetext", n.toLocaleString("en") + " items");
  for (const figure of document.querySelectorAll("[data-map]")) {
    const map = data.maps[figure.dataset.map][n];
    const readout = figure.querySelector(".readout");
    readout.textContent = "";
    const drawing = figure.querySelector(".drawing");
    if (!map) {
      drawing.replaceChildren("not measured at this size");
      continue;
    }
    const weight = (row, column) => valueAt(map, row * map.columns + column);
    const rank = (column) => map.columns - column;
    drawing.replaceChildren(heatMap({
      rows: map.rows, columns: map.columns, xName: "items by priority (1: the largest)", yName: "sets",
      rowLabel: (row) => String(row + 1), columnLabel: (column) => String(rank(column)),
      share: weight,
      alt: `Weights of ${figure.dataset.map} on the ${map.columns} items of highest priority of ${map.rows} sets of ${n} items; the largest weight is ${shown(map.largest)}.`,
      read: (row, column) => (readout.textContent = `set ${row + 1}, item of rank ${rank(column)}: weight ${shown(weight(row, column))}`),
    }));
  }
}

slider.addEventListener("input", drawSize);
drawSize();

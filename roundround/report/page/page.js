// Every page: columns that sort, a switch between light and dark.

function asNumber(text) {
  return text === "" ? NaN : Number(text.replace("inf", "Infinity"));
}

function valueOf(cell) {
  if (cell.dataset.value !== undefined) return asNumber(cell.dataset.value);
  return asNumber(cell.textContent.replace(/,/g, ""));
}

const namesOf = (table) => table.tHead.rows[table.tHead.rows.length - 1].cells; // above them: groups of columns

function sortBy(table, column, header) {
  const descending = header.getAttribute("aria-sort") === "ascending";
  const numeric = header.classList.contains("number");
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  const sign = descending ? -1 : 1;
  rows.sort(function (a, b) {
    const [x, y] = [a.cells[column], b.cells[column]];
    if (!numeric) return sign * x.textContent.localeCompare(y.textContent, undefined, { numeric: true });
    const [p, q] = [valueOf(x), valueOf(y)];
    if (Number.isNaN(p) || Number.isNaN(q)) return Number.isNaN(p) - Number.isNaN(q); // no number: always last
    return sign * (p < q ? -1 : p > q ? 1 : 0);
  });
  for (const other of namesOf(table)) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", descending ? "descending" : "ascending");
  body.append(...rows);
}

for (const table of document.querySelectorAll("table.sortable")) {
  Array.from(namesOf(table)).forEach(function (header, column) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    header.addEventListener("click", () => sortBy(table, column, header));
  });
}

const themeButton = document.getElementById("theme");
const systemDark = window.matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : systemDark.matches;
}

function nameTheme() {
  themeButton.textContent = isDark() ? "light" : "dark";
  themeButton.setAttribute("aria-label", "Switch to the " + themeButton.textContent + " colours");
}

themeButton.hidden = false;
themeButton.addEventListener("click", function () {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  nameTheme();
});
systemDark.addEventListener("change", nameTheme);
nameTheme();

// What is folded on the screen is read on paper.
window.addEventListener("beforeprint", function () {
  for (const details of document.querySelectorAll("details")) {
    if (!details.open && details.querySelectorAll("tr").length <= 80) {
      details.dataset.wasClosed = "";
      details.open = true;
    }
  }
});
window.addEventListener("afterprint", function () {
  for (const details of document.querySelectorAll("details[data-was-closed]")) {
    details.open = false;
    delete details.dataset.wasClosed;
  }
});

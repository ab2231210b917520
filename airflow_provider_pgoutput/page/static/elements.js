// Parts of the page. Names are set as text, never as HTML.

import { count } from "./words.js";

const SHOWN_ROWS = 200;
// Whether the user sorted or searched a table.
let touched = false;
export const isTouched = () => touched;
function touch() {
  if (touched) return;
  touched = true;
  const as = `This is how it was at ${new Date().toLocaleTimeString()}. Reload the page to see what is new.`;
  document.getElementById("page").prepend(element("p", as, "soft"));
}

export function element(name, text = "", className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

// Rows as a table; columns: [{title, cell(row) -> text or node, number, value(row) for sorting}].
export function table(columns, rows, sorted = null) {
  const wrapper = element("div", "", "scroll");
  const made = element("table");
  const head = made.createTHead().insertRow();
  const body = made.createTBody();
  let order = sorted;
  const fill = () => {
    const ordered = [...rows];
    if (order) {
      const { value } = columns[order.column];
      ordered.sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * order.sign);
    }
    body.replaceChildren(
      ...ordered.slice(0, SHOWN_ROWS).map((row) => {
        const line = element("tr");
        for (const column of columns) {
          const cell = element("td", "", column.number ? "number" : "name");
          const content = column.cell(row);
          cell.append(content instanceof Node ? content : String(content));
          line.append(cell);
        }
        return line;
      }),
    );
    if (ordered.length > SHOWN_ROWS) {
      const line = body.insertRow();
      const cell = line.insertCell();
      cell.colSpan = columns.length;
      cell.className = "soft";
      cell.textContent = `${count(ordered.length - SHOWN_ROWS)} more. Search to see them.`;
    }
  };
  columns.forEach((column, i) => {
    const cell = element("th", "", column.number ? "number" : "");
    cell.scope = "col";
    if (column.value) {
      const button = element("button", column.title);
      button.type = "button";
      button.addEventListener("click", () => {
        touch();
        order = { column: i, sign: order?.column === i ? -order.sign : column.number ? -1 : 1 };
        fill();
      });
      cell.append(button);
    } else cell.textContent = column.title;
    head.append(cell);
  });
  fill();
  wrapper.append(made);
  return { wrapper, refill: (other) => { rows = other; fill(); } };
}

// Finds rows of a table by a name.
export function searchBox(title, rows, nameOf, { refill }) {
  const made = element("input");
  made.type = "search";
  made.placeholder = title;
  made.setAttribute("aria-label", title);
  made.addEventListener("input", () => {
    touch();
    const wanted = made.value.toLowerCase();
    refill(rows.filter((row) => nameOf(row).toLowerCase().includes(wanted)));
  });
  return made;
}

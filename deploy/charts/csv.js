// The data of a chart as CSV, with a column for each entry of `usermeta.columns` (field → title).

/** Returns the rows of a specification's data; times are ISO 8601 in the zone of the chart. */
export function csvOf(specification) {
  const { columns, times = [] } = specification.usermeta;
  const fields = Object.keys(columns);
  const cell = (row, field) => {
    const value = row[field];
    if (value === null || value === undefined) return "";
    return quoted(times.includes(field) ? new Date(value).toISOString().slice(0, 19) : value);
  };
  const rows = specification.datasets.rows.map((row) => fields.map((field) => cell(row, field)));
  return [fields.map((field) => quoted(columns[field])), ...rows].map((cells) => `${cells.join(",")}\r\n`).join("");
}

/** Returns a cell; a spreadsheet executes a text that begins with = + - @, unless the text begins with an apostrophe. */
function quoted(value) {
  if (typeof value !== "string") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

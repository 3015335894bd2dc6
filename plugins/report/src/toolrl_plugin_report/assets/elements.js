"use strict";
// Elements and numbers. Text enters the page as text nodes only.

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

function svg(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function colored(index) {
  const swatch = el("i");
  swatch.style.background = `var(--c${index % 8})`;
  return swatch;
}

function formatNumber(value, unit) {
  if (value === null || value === undefined) return "not finite";
  if (typeof value === "string") return value;
  if (unit === "share") {
    const percent = 100 * value;
    return (Math.abs(percent) >= 10 || percent === 0 ? percent.toFixed(1) : percent.toPrecision(2)) + " %";
  }
  const size = Math.abs(value);
  const suffix = unit === "seconds" ? " s" : "";
  if (size && (size < 1e-3 || size >= 1e6)) return value.toExponential(2) + suffix;
  if (Number.isInteger(value) || size >= 1000) return value.toFixed(0) + suffix;
  return value.toPrecision(size >= 100 ? 4 : 3) + suffix;
}

function seconds(value) {
  return value >= 100 ? `${Math.round(value)} s` : value >= 1 ? `${value.toFixed(2)} s` : `${Math.round(value * 1000)} ms`;
}

function signed(value) {
  return `${Number(value) >= 0 ? "+" : ""}${formatNumber(value)}`;
}

function chip(text, style, title) {
  return el("span", { class: `chip ${style || ""}`, title }, text);
}

// Control characters, and those that turn the direction of writing, as marks of themselves.
function visible(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g,
    (char) => `⟨U+${char.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

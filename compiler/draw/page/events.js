// What the pointer and the keys do: ask, zoom, move.
"use strict";

// What stands at a point of the canvas: null, or its text with where and when.
function at(x, y) {
  y += scroller.scrollTop;
  const row = rows[firstOf(rows.length, (i) => rows[i].y + rows[i].height > y)];
  if (!row || !row.device || y < row.y || x < LEFT) return null;
  const { plan, device, d } = row, time = timeOf(x);
  const where = { plan: plans.indexOf(plan), device: d, time };
  if (row.curve) {
    const point = row.curve[firstOf(row.curve.length, (i) => row.curve[i].time > time) - 1];
    if (time > plan.end || !point) return null;
    return { ...where, alive: point.alive * device.activation, peak: device.peak };
  }
  const near = 3 / view.scale;  // what takes no time still has to be hit
  const covers = (i) => device.duration[i] > 0
    ? device.start[i] <= time && time < device.end[i] && halfOf(device, i, row, y)
    : all.checked && Math.abs(device.start[i] - time) < near;
  const { boxes } = row.lane, hits = [];
  for (let b = firstOf(boxes.length, (b) => device.end[boxes[b]] >= time - near);
       b < boxes.length && device.start[boxes[b]] <= time + near; ++b)
    if (covers(boxes[b])) hits.push(boxes[b]);
  if (hits.length === 0) return null;
  const index = hits.find((i) => device.duration[i] === 0) ?? hits[0];
  const { op, text, micro } = instruction(plan, device, index);
  return { ...where, index, text, micro, start: device.start[index], end: device.end[index],
           duration: device.duration[index], idle: op === "WAIT" ? device.idle : "",
           critical: device.critical.has(index) };
}

function halfOf(device, index, row, y) {
  const lower = y > row.y + row.height / 2;
  return lower ? !device.upper.has(index) : !device.lower.has(index);
}

function describe(under) {
  const where = "d" + under.device;
  if (under.alive !== undefined)
    return `${short(under.alive)} full activations\n` +
      `${where} at ${short(under.time)} ${unit}, peak ${short(under.peak)}`;
  return `${under.text}\n${where}, instruction ${under.index}\n` +
    `${short(under.start)} to ${short(under.end)} ${unit}, takes ${short(under.duration)}` +
    (under.idle ? `\n${where} idle: ${under.idle}` : "") +
    (under.critical ? "\non the critical path" : "");
}

function hover(x, y) {
  pointer = { x, y };
  const under = at(x, y);
  tip.textContent = under ? describe(under) : "";
  tip.style.display = under ? "block" : "none";
  const box = canvas.getBoundingClientRect();
  const left = box.left + x + 14, above = box.top + y + 16;
  tip.style.left = Math.min(left, innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = Math.min(above, innerHeight - tip.offsetHeight - 8) + "px";
  redraw();
}

let drag = null;  // where the pointer was last while it is down
canvas.addEventListener("pointerdown", (event) => {
  drag = { x: event.clientX, y: event.clientY };
});
addEventListener("pointerup", () => { drag = null; });
addEventListener("pointermove", (event) => {
  if (!drag) return;
  scroller.scrollTop -= event.clientY - drag.y;
  move(view.start - (event.clientX - drag.x) / view.scale, view.scale);
  drag = { x: event.clientX, y: event.clientY };
});
canvas.addEventListener("pointermove", (event) => hover(event.offsetX, event.offsetY));
canvas.addEventListener("pointerleave", () => {
  pointer = null;
  tip.style.display = "none";
  redraw();
});
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  const sideways = event.shiftKey ? event.deltaY : event.deltaX;
  if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY))
    move(view.start + sideways / view.scale, view.scale);
  else zoom(Math.exp(-event.deltaY / 400), event.offsetX);
}, { passive: false });
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;  // the browser's
  const middle = pointer ? pointer.x : (LEFT + view.width) / 2, far = 120 / view.scale;
  if (event.key === "+" || event.key === "=") zoom(1.5, middle);
  else if (event.key === "-") zoom(1 / 1.5, middle);
  else if (event.key === "0") move(0, 0);
  else if (event.key === "ArrowLeft") move(view.start - far, view.scale);
  else if (event.key === "ArrowRight") move(view.start + far, view.scale);
});
scroller.addEventListener("scroll", redraw);
all.addEventListener("change", layout);
addEventListener("resize", layout);

function showLegend() {
  const entries = new Map();  // name -> { colours, thin }
  for (const plan of plans)
    for (const device of plan.devices)
      device.kind.forEach((number, i) => {
        const kind = plan.kinds[number];
        if (device.duration[i] === 0 || kind.op === "WAIT") return;
        if (!entries.has(kind.legend))
          entries.set(kind.legend, { colours: new Set(), thin: kind.lane > 0 });
        entries.get(kind.legend).colours.add(kind.colour);
      });
  const ordered = [...entries].sort(([, a], [, b]) => a.thin - b.thin);
  for (const [name, { colours, thin }] of ordered) {
    const item = document.createElement("span");
    for (const colour of colours) {
      const patch = document.createElement("i");
      patch.style.background = colour;
      if (thin) patch.className = "thin";
      item.append(patch);
    }
    const label = document.createElement("b");
    label.textContent = name;
    item.append(label);
    document.getElementById("legend").append(item);
  }
}

document.title = plans.map((plan) => plan.scheme).join(" and ") + " - pipec";
showLegend();
layout();

// For tests and for the console.
window.pipe = { plans, view, at, xOf, draw, drawn: () => drawn, rows: () => rows };

// The picture: what is in sight of the rows and of the time, and nothing else.
//
//   rows   each plan's title, then for each device its lanes and its memory curve
//   view   which time stands where
//   draw   once a frame at most
//
// x and y are pixels of the canvas; y of a row is from the top of the first, above what is
// scrolled away.
"use strict";

const canvas = document.querySelector("canvas"), context = canvas.getContext("2d");
const scroller = document.getElementById("view"), tall = document.getElementById("tall");
const tip = document.getElementById("tip"), all = document.getElementById("all");

const LEFT = 104, RIGHT = 24, AXIS = 24;
const view = { start: 0, scale: 1, width: 0, height: 0 };  // scale: pixels a unit of time
let rows = [];      // { y, height, plan, device, lane } or with curve, or a title
let pointer = null;  // { x, y } over the canvas
let drawn = 0;       // instructions in the last picture

const fitting = () => (view.width - LEFT - RIGHT) / longest;
const bounded = (scale) => Math.min(Math.max(scale, fitting()), fitting() * 1e6);
const xOf = (time) => LEFT + (time - view.start) * view.scale;
const timeOf = (x) => view.start + (x - LEFT) / view.scale;
const short = (number) => String(parseFloat(number.toPrecision(6)));

// Rows as high as the window allows, within what can be read.
function layout() {
  const devices = plans.reduce((sum, plan) => sum + plan.devices.length, 0);
  const room = (scroller.clientHeight - AXIS - 44 * plans.length) / devices / 62;
  const stretch = Math.min(1.3, Math.max(0.6, room));
  rows = [];
  let y = AXIS;
  const add = (height, row) => {
    rows.push({ y, height, ...row });
    y += height;
  };
  for (const plan of plans) {
    add(40, { plan });
    plan.devices.forEach((device, d) => {
      for (const lane of device.lanes)
        if (lane.id === 0) add(26 * stretch, { plan, device, d, lane });
        else if (lane.takesTime || all.checked) add(10, { plan, device, d, lane });
      add(22 * stretch, { plan, device, d, curve: device.curve });
      y += 8 * stretch;
    });
  }
  const zoom = view.width ? view.scale / fitting() : 1;
  view.width = scroller.clientWidth;
  view.height = scroller.clientHeight;
  tall.style.height = Math.max(y + 8, view.height) + "px";
  canvas.width = view.width * devicePixelRatio;
  canvas.height = view.height * devicePixelRatio;
  canvas.style.width = view.width + "px";
  canvas.style.height = view.height + "px";
  move(view.start, zoom * fitting());
}

// Shows time from `start` on at `scale`, within bounds.
function move(start, scale) {
  view.scale = bounded(scale);
  const shown = (view.width - LEFT - RIGHT) / view.scale;
  view.start = Math.min(Math.max(start, 0), Math.max(0, longest - shown));
  redraw();
}

// Zooms so that the time at x stays there.
function zoom(factor, x) {
  const time = timeOf(x), scale = bounded(view.scale * factor);
  move(time - (x - LEFT) / scale, scale);
}

let waiting = false;
function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(draw);
}

function draw() {
  waiting = false;
  drawn = 0;
  context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
  context.fillStyle = "#fff";
  context.fillRect(0, 0, view.width, view.height);
  const top = scroller.scrollTop;
  const under = pointer && at(pointer.x, pointer.y);
  const first = firstOf(rows.length, (i) => rows[i].y + rows[i].height > top);
  for (let i = first; i < rows.length && rows[i].y < top + view.height; ++i) {
    const row = rows[i], y = row.y - top;
    if (row.curve) drawCurve(row, y);
    else if (row.lane) drawLane(row, y, under);
    else drawTitle(row, y);
    if (row.device && row.plan.end < longest) {
      context.fillStyle = "#999";
      context.fillRect(xOf(row.plan.end), y, 1, row.height + 8);
    }
  }
  drawAxis();
  if (pointer && pointer.x > LEFT) {
    context.fillStyle = "#0006";
    context.fillRect(pointer.x, AXIS - 6, 1, view.height);
  }
}

function text(string, x, y, font, colour, align = "left") {
  context.font = font + " Helvetica, Arial, sans-serif";
  context.fillStyle = colour;
  context.textAlign = align;
  context.fillText(string, x, y);
}

function drawTitle({ plan }, y) {
  text(plan.scheme, 14, y + 26, "bold 15px", "#222");
  const x = 14 + context.measureText(plan.scheme).width + 14;
  text(plan.about, x, y + 26, "13px", "#222");
  text(plan.summary, x + context.measureText(plan.about).width + 22, y + 26, "13px", "#666");
}

// Everything right of the names.
function clipped(y, height, paint) {
  context.save();
  context.beginPath();
  context.rect(LEFT, y, view.width - LEFT, height);
  context.clip();
  paint();
  context.restore();
}

function drawLane(row, y, under) {
  const { plan, device, lane } = row, height = row.height - 1;
  if (lane.id === 0) text("d" + row.d, 14, y + height / 2 + 5, "bold 13px", "#222");
  else text(lane.name, LEFT - 6, y + height - 1, "9px", "#777", "right");
  clipped(y, row.height, () => {
    context.fillStyle = "#f7f7f7";
    context.fillRect(LEFT, y, xOf(plan.end) - LEFT, height);
    const { boxes } = lane;
    const last = firstOf(boxes.length, (b) => device.start[boxes[b]] > timeOf(view.width));
    let next = firstOf(last, (b) => device.end[boxes[b]] >= view.start);
    // Of boxes that share a pixel one is drawn.
    const crowded = last - next > 4 * view.width;
    while (next < last) {
      const index = boxes[next++], end = device.end[index] + 0.5 / view.scale;
      if (device.duration[index] > 0 || all.checked) drawBox(row, index, y, height, under);
      if (crowded) next = Math.max(next, firstOf(last, (b) => device.end[boxes[b]] >= end));
    }
  });
}

function drawBox({ plan, device, lane }, index, y, height, under) {
  const box = instruction(plan, device, index);
  if (device.upper.has(index) || device.lower.has(index)) height /= 2;
  if (device.lower.has(index)) y += height;
  const x = xOf(device.start[index]), width = device.duration[index] * view.scale;
  ++drawn;
  if (width === 0) {
    context.fillStyle = "#444";
    context.fillRect(x - 2, y + height * 0.6, 1.5, height * 0.4);
  } else {
    context.fillStyle = box.op === "WAIT" ? "#ebebeb" : box.colour;
    context.fillRect(x, y, width > 3 ? width - 0.75 : Math.max(width, 0.6), height);
  }
  if (box.op === "WAIT") return;
  if (device.critical.has(index)) {
    context.fillStyle = "#b00";
    context.fillRect(x, y + height - 2.5, Math.max(width - 0.75, 1.5), 2.5);
  }
  if (box.micro >= 0 && under && under.micro === box.micro && width > 2) {
    context.strokeStyle = "#000";
    context.lineWidth = 1.5;
    context.strokeRect(x + 0.5, y + 0.75, width - 1.75, height - 1.5);
  }
  if (lane.id === 0 && box.micro >= 0 && height > 8) drawLabel(plan, box, x, width, y, height);
}

// The micro-batch and, smaller and lower, the stage.
function drawLabel(plan, box, x, width, y, height) {
  // In sight even where the box is not.
  const left = Math.max(x, LEFT), right = Math.min(x + width, view.width);
  const size = Math.min(12, height * 0.7), digit = 0.57 * size;
  if (right - left < digit * plan.widest + 3) return;
  const micro = String(box.micro), stage = plan.several ? String(box.stage) : "";
  const wide = digit * (micro.length + 0.75 * stage.length);
  const begin = (left + right - wide) / 2, base = y + height / 2 + size * 0.35;
  text(micro, begin, base, size + "px", "#111");
  if (stage)
    text(stage, begin + digit * micro.length, base + size * 0.2, size * 0.75 + "px", "#111");
}

function drawCurve({ plan, device, curve, height }, y) {
  const bottom = y + height - 1, scale = (height - 6) / highest * device.activation;
  text("peak " + short(device.peak), LEFT - 6, bottom - height / 2 + 4, "10px", "#777", "right");
  if (device.memory) text(device.memory, 14, bottom - height / 2 + 4, "10px", "#777");
  clipped(y, height, () => {
    const last = firstOf(curve.length, (i) => curve[i].time > timeOf(view.width));
    let i = Math.max(0, firstOf(curve.length, (i) => curve[i].time > view.start) - 1);
    context.beginPath();
    context.moveTo(LEFT, bottom);
    for (; i < last; ++i) {
      const x = Math.max(LEFT, xOf(curve[i].time));
      context.lineTo(x, bottom - (i > 0 ? curve[i - 1].alive : 0) * scale);
      context.lineTo(x, bottom - curve[i].alive * scale);
    }
    const end = Math.min(view.width, xOf(plan.end));
    context.lineTo(end, bottom - (last > 0 ? curve[last - 1].alive : 0) * scale);
    context.lineTo(end, bottom);
    context.fillStyle = "#b9a7d6";
    context.fill();
  });
}

function drawAxis() {
  context.fillStyle = "#fffd";
  context.fillRect(0, 0, view.width, AXIS);
  const least = 80 / view.scale, power = 10 ** Math.floor(Math.log10(least));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= least);
  for (let tick = Math.ceil(view.start / step); tick * step <= timeOf(view.width); ++tick) {
    const x = xOf(tick * step);
    context.fillStyle = "#0001";
    context.fillRect(x, AXIS - 4, 1, view.height);
    text(short(tick * step), x, AXIS - 9, "11px", "#555", "center");
  }
  text("time (" + unit + ")", 14, AXIS - 9, "11px", "#555");
  context.fillStyle = "#bbb";
  context.fillRect(LEFT, AXIS - 5, view.width - LEFT, 1);
}

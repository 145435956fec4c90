// The page's data: plans -> devices -> lanes, each with its boxes in the order of time, and
// the activations alive over time. All times are in the plans' unit.
"use strict";

const { unit, plans } = JSON.parse(document.getElementById("plans").textContent);

// The first index in [0, count) for which holds(index) is true, which then stays true.
function firstOf(count, holds) {
  let low = 0;
  while (low < count) {
    const middle = (low + count) >> 1;
    if (holds(middle)) count = middle;
    else low = middle + 1;
  }
  return low;
}

// The highest of numbers that may be too many for an argument list; 0 if none is above.
const most = (numbers) => numbers.reduce((a, b) => Math.max(a, b), 0);

for (const plan of plans) {
  for (const device of plan.devices) {
    const lanes = new Map(device.lanes.map(([id, name]) => [id, { id, name, boxes: [] }]));
    device.kind.forEach((kind, index) => lanes.get(plan.kinds[kind].lane).boxes.push(index));
    device.lanes = [...lanes.values()];
    device.end = Float64Array.from(device.start, (start, i) => start + device.duration[i]);
    device.upper = new Set(device.upper);
    device.lower = new Set(device.lower);
    device.critical = new Set(device.critical);  // empty unless pipec was asked why
    for (const lane of device.lanes)
      lane.takesTime = lane.boxes.some((i) => device.duration[i] > 0);
    device.curve = curveOf(plan, device);
    device.peak = device.activation * most(device.curve.map((point) => point.alive));
  }
}
// Digits of the longest label: equal boxes shall all have one, or none.
for (const plan of plans) {
  const micro = most(plan.devices.map((device) => most(device.micro)));
  const stage = most(plan.kinds.map((kind) => kind.stage));
  plan.widest = String(micro).length + (plan.several ? 0.75 * String(stage).length : 0);
}
const longest = most(plans.map((plan) => plan.end)) || 1;
const highest = most(plans.flatMap((plan) => plan.devices.map((d) => d.peak))) || 1;

// Full activations alive over time, as points from which on a number holds: one more from
// the start of a forward, one less from the end of its backward. The order is that of the
// list, as for pipec's peak: times are rounded.
function curveOf(plan, device) {
  let { alive } = device, time = 0;
  const curve = [{ time, alive }];
  device.kind.forEach((kind, i) => {
    const { change } = plan.kinds[kind];
    if (change === 0) return;
    time = Math.max(time, change > 0 ? device.start[i] : device.end[i]);
    curve.push({ time, alive: (alive += change) });
  });
  return curve;
}

function instruction(plan, device, index) {
  const kind = plan.kinds[device.kind[index]], micro = device.micro[index];
  return { ...kind, micro, text: micro < 0 ? kind.before : kind.before + micro + kind.after };
}

// Runs at the end of the page that tests/picture_test.sh makes. `expected` has, for each
// plan, what pipec says of it in other forms; `errors` what went wrong so far.
let checks = 0;
function check(holds, what) {
  ++checks;
  if (!holds) errors.push(what);
}
function equal(got, wanted, what) {
  const [one, other] = [JSON.stringify(got), JSON.stringify(wanted)];
  check(one === other, `${what}: ${one} instead of ${other}`);
}

const { view } = pipe;
const textOf = (plan, device, i) => {
  const kind = plan.kinds[device.kind[i]];
  return device.micro[i] < 0 ? kind.before : kind.before + device.micro[i] + kind.after;
};
const rowOf = (plan, d, wanted) =>
  pipe.rows().find((row) => row.plan === pipe.plans[plan] && row.d === d && wanted(row));
const compute = (row) => row.lane && row.lane.id === 0;
function send(type, x, y, more = {}) {
  const box = canvas.getBoundingClientRect();
  const Kind = type === "wheel" ? WheelEvent : PointerEvent;
  const place = { clientX: box.left + x, clientY: box.top + y, bubbles: true };
  canvas.dispatchEvent(new Kind(type, { ...place, ...more }));
}
function tipAt(plan, d, wanted, time, share = 0.5) {  // share of the row's height
  const row = rowOf(plan, d, wanted);
  send("pointermove", pipe.xOf(time), row.y + row.height * share);
  return document.getElementById("tip").textContent;
}
const press = (key) => dispatchEvent(new KeyboardEvent("keydown", { key }));

// Every instruction is there, in order, as the text form has it.
equal(pipe.plans.map((plan) => plan.devices.length), [4, 2, 4], "plans");
equal(pipe.plans[1].scheme, "<" + '/script><img/src=x/onerror=hacked=1>&amp;"', "scheme");
check(typeof hacked === "undefined", "a scheme's name was run");
let instructions = 0, boxes = 0;
expected.forEach(({ text, prediction, svg }, p) => {
  const plan = pipe.plans[p], lists = text.split(/^device .*\n/m).slice(1);
  equal(plan.end, prediction.makespan, "makespan");
  equal(plan.devices.length, lists.length, "devices");
  lists.forEach((list, d) => {
    const lines = list.trim().split("\n").map((line) => line.trim().replace(/ +/g, " "));
    const device = plan.devices[d];
    equal(device.kind.map((_, i) => textOf(plan, device, i)), lines, `instructions of d${d}`);
    const path = prediction.critical_path.filter((step) => step.device === d);
    equal([...device.critical], path.map((step) => step.index), `critical path on d${d}`);
    equal(device.peak, prediction.devices[d].peak_activations, `peak of d${d}`);
    instructions += lines.length;
    boxes += device.duration.filter((time) => time > 0).length;
  });

  // The figure is XML and has a rectangle for each instruction that takes time.
  const figure = new DOMParser().parseFromString(svg, "image/svg+xml");
  check(!figure.querySelector("parsererror"), "svg: " + figure.documentElement.textContent);
  const shown = (device) => device.kind.filter(
    (kind, i) => device.duration[i] > 0 && plan.kinds[kind].op !== "WAIT").length;
  equal([...figure.querySelectorAll("g")].map((g) => g.querySelectorAll("rect").length),
        plan.devices.map(shown), "rectangles");
});

// All of it is drawn, in its colour; what takes no time only if asked for.
pipe.draw();
equal(pipe.drawn(), boxes, "drawn");
const forward = rowOf(0, 0, compute);
const dot = canvas.getContext("2d").getImageData(pipe.xOf(0.2), forward.y + 4, 1, 1);
equal([...dot.data], [0x77, 0xaa, 0xdd, 255], "colour of FW s0 m0");
all.checked = true;
all.dispatchEvent(new Event("change"));
pipe.draw();
equal(pipe.drawn(), instructions, "drawn in all");
all.checked = false;
all.dispatchEvent(new Event("change"));

// Under the pointer. 1F1B: d1 runs micro-batch 1 from 2.25 to 3.25, d0 idles until 11.5.
const memory = (row) => row.curve, sends = (row) => row.lane && row.lane.name === "send to d1";
const index = pipe.plans[0].devices[1].kind.findIndex(
  (_, i) => textOf(pipe.plans[0], pipe.plans[0].devices[1], i) === "FW s1 m1");
const end = expected[0].prediction.makespan;
equal(tipAt(0, 1, compute, 3),
      `FW s1 m1\nd1, instruction ${index}\n2.25 to 3.25 T, takes 1`, "hover");
for (const [plan, row, time, wanted] of [
  [0, compute, 8, "WAIT grad s0 m0\n"],  // what an idle device waits for
  [0, sends, 1.1, "SEND_act s0 m0 to d1\n"],
  [1, compute, 0.2, "FW s0 m0\n"],
  [0, memory, 8, "4 full activations\n"],
  [0, memory, end - 0.1, "1 full activations\n"],  // alive until the last backward ends
]) {
  const tip = tipAt(plan, 0, row, time);
  check(tip.startsWith(wanted), `hover at ${time}: '${tip}' instead of '${wanted}'`);
}
const waits = tipAt(0, 1, compute, 7.9).split("\n");
const { "warm-up": warmUp, drain, ...gaps } = expected[0].prediction.devices[1].idle;
const parts = Object.entries({ "warm-up": warmUp, ...gaps, drain }).filter(([, time]) => time > 0);
equal(waits[3], "d1 idle: " + parts.map(([cause, time]) => `${cause} ${time}`).join(", "),
      "why d1 waits");
check(tipAt(0, 0, compute, 0.5).endsWith("\non the critical path"), "FW s0 m0 is not critical");
const dual = pipe.plans[2].devices[0], [pair] = dual.upper;  // two that run as one
for (const [share, i] of [[0.25, pair], [0.75, pair + 1]]) {
  const tip = tipAt(2, 0, compute, (dual.start[pair] + dual.end[pair]) / 2, share);
  check(tip.startsWith(textOf(pipe.plans[2], dual, i) + "\n"), `hover at ${share}: '${tip}'`);
}
equal(tipAt(0, 0, compute, 1e9), "", "hover beside all");

// The curve's highest point is the predicted peak.
pipe.plans.forEach((plan, p) => plan.devices.forEach((device, d) => {
  const row = rowOf(p, d, (row) => row.curve);
  let most = 0;
  for (let x = pipe.xOf(0); x < view.width; ++x)
    most = Math.max(most, pipe.at(x, row.y + 2)?.alive ?? 0);
  equal(most, expected[p].prediction.devices[d].peak_activations, `highest of d${d}`);
}));

// Zoom keeps the time under the pointer; 0 shows all again.
const fitting = view.scale, x = pipe.xOf(20), before = pipe.at(x, forward.y + 2).time;
send("wheel", x, forward.y + 2, { deltaY: -400 });
check(Math.abs(view.scale / fitting - Math.E) < 1e-9, "wheel: " + view.scale / fitting);
check(Math.abs(pipe.at(x, forward.y + 2).time - before) < 1 / view.scale, "wheel moves the time");
pipe.draw();
check(pipe.drawn() < boxes, "drawn out of sight: " + pipe.drawn());
const start = view.start;
send("pointerdown", x, forward.y);
send("pointermove", x - 50, forward.y);
dispatchEvent(new PointerEvent("pointerup"));
check(Math.abs(view.start - start - 50 / view.scale) < 1e-9, "drag");
press("+");
check(view.scale > 3 * fitting, "+");
press("-");
press("-");
check(view.scale < 2 * fitting, "-");
press("0");
equal([view.start, view.scale], [0, fitting], "0");

const result = document.createElement("pre");
result.id = "result";
result.textContent = errors.length ? "FAILED\n" + errors.join("\n") : `all ${checks} checks passed`;
document.body.append(result);

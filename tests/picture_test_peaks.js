// Runs at the end of a page of many plans; `expected` is what pipec simulate says of each.
let checks = 0;
const rounded = (number) => Number(number.toPrecision(9));  // as pipec prints it
pipe.plans.forEach((plan, p) => plan.devices.forEach((device, d) => {
  ++checks;
  const peak = expected[p].devices[d].peak_activations;
  if (rounded(device.peak) !== peak)
    errors.push(`${expected[p].plan}, ${plan.scheme}, d${d}: ${device.peak} instead of ${peak}`);
  ++checks;
  if (device.curve.some((point, i) => i > 0 && point.time < device.curve[i - 1].time))
    errors.push(`${expected[p].plan}, d${d}: the curve goes back in time`);
  ++checks;
  const last = device.curve[device.curve.length - 1];
  if (last.alive !== 0 || last.time > plan.end * (1 + 1e-8))
    errors.push(`${expected[p].plan}, d${d}: ${last.alive} alive at its end, ${last.time}`);
}));
if (pipe.plans.length !== expected.length || checks < 1500) errors.push(`${checks} checks`);

const result = document.createElement("pre");
result.id = "result";
result.textContent = errors.length ? "FAILED\n" + errors.join("\n") : `all ${checks} checks passed`;
document.body.append(result);

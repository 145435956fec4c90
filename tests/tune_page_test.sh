#!/bin/bash
# The page of pipec tune as a browser sees it: a dot for each candidate where its memory and speed
# say, a row for each exact one, and the command of what the pointer is at. The model's name tries to
# break out.
set -euo pipefail
pipec=$PWD/compiler/pipec
command -v chromium >/dev/null || { echo "chromium is missing (tools/setup --with test)"; exit 1; }
cd "$(mktemp -d -p "${TEST_TMPDIR:-/tmp}")"

model='<img src=x onerror=hacked=1>.json'
echo '{"model_type":"gpt2","n_layer":8,"n_embd":64,"n_head":4,"vocab_size":512,"n_positions":64}' >"$model"
"$pipec" tune --model "$model" --devices 4 --global-batch-size 8 --machine a100-40g \
  --device-memory 4MiB --format html >page.html

{
  echo "<script>errors = []; onerror = (text) => { errors.push(text); }</script>"
  cat page.html
  cat <<'END'
<script>
const say = (holds, what) => { if (!holds) errors.push(what); };
const circles = [...document.querySelectorAll("circle")];
const counts = [data.candidates.length, data.candidates.filter((c) => !c.fits).length,
                data.candidates.filter((c) => c.fits && exact(c)).length];
say(counts.every((count) => count > 1), "too few to check: " + counts);
say(circles.length === counts[0], "dots: " + circles.length);
say(document.querySelectorAll("circle.large").length === counts[1], "dots of those that do not fit");
say(table.rows.length === counts[2] + 1, "rows: " + table.rows.length);
say(typeof hacked === "undefined", "the model's name broke out");
// Left of the line is what fits.
const line = xOf(memory);
data.candidates.forEach((c, i) => {
  const x = Number(dots.get(i).getAttribute("cx")), y = Number(dots.get(i).getAttribute("cy"));
  if (c.fits !== (x <= line)) errors.push("candidate " + i + " on the wrong side");
  // Faster than the first, which is the simplest, are only those that are as fast but for the error.
  if (c.fits && i > 0 && !c.as_fast && y < Number(dots.get(0).getAttribute("cy")))
    errors.push(i + " above the best");
});
const last = counts[0] - 1;
dots.get(last).dispatchEvent(new MouseEvent("mouseenter"));
say(document.getElementById("command").textContent === data.candidates[last].command, "command");
say(document.getElementById("picked").textContent.includes("does not fit ("), "why");
document.querySelector("tr[data-index='1']").dispatchEvent(new MouseEvent("mouseenter"));
say(document.querySelectorAll(".picked").length === 2, "a dot and its row");
const result = document.createElement("pre");
result.id = "result";
result.textContent = errors.length ? "FAILED\n" + errors.join("\n") : "all checks passed";
document.body.append(result);
</script>
END
} >test.html
HOME=$PWD timeout 50 chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
  --user-data-dir="$PWD/profile" --window-size=1200,900 --enable-logging=stderr --dump-dom \
  "file://$PWD/test.html" >dom.html 2>log.txt || { cat log.txt; exit 1; }
if ! grep -o '<pre id="result">all checks passed</pre>' dom.html; then
  sed -n '/<pre id="result">/,/<\/pre>/p' dom.html
  grep CONSOLE log.txt || true
  exit 1
fi

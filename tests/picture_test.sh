#!/bin/bash
# The pictures as a browser sees them: picture_test.js checks one page with three plans, and
# their figures, inside the page. One of the plans has a name that tries to break out.
set -euo pipefail
pipec=$PWD/compiler/pipec checks=$PWD/tests/picture_test.js figure=$PWD/tests/golden/1f1b.svg
command -v chromium >/dev/null || { echo "chromium is missing (tools/setup --with test)"; exit 1; }
cd "$(mktemp -d -p "${TEST_TMPDIR:-/tmp}")"

# README's figure is what pipec draws (tools/golden rewrites it).
"$pipec" compile --scheme 1f1b --devices 4 --microbatches 8 -o a.plan
"$pipec" show a.plan --format svg | diff "$figure" -

"$pipec" compile --scheme interleaved --devices 2 --microbatches 4 -o b.plan
"$pipec" show b.plan | sed '1s|interleaved|</script><img/src=x/onerror=hacked=1>\&amp;"|' >b.txt
"$pipec" import b.txt -o b.plan
"$pipec" compile --scheme dualpipe --devices 4 --microbatches 8 -o c.plan
"$pipec" simulate a.plan b.plan c.plan --costs f=1,b=2,comm=0.25 --why --format html >page.html

# The page, preceded by what catches its errors, and followed by the plans in other formats and the
# checks.
{
  echo "<script>errors = []; onerror = (text) => { errors.push(text); }</script>"
  cat page.html
  echo "<script>expected = ["
  for plan in a.plan b.plan c.plan; do
    simulate() { "$pipec" simulate "$plan" --costs f=1,b=2,comm=0.25 --format "$@"; }
    echo "{ prediction: $(simulate json --why), text: atob('$("$pipec" show "$plan" | base64 -w 0)'),"
    echo "  svg: atob('$(simulate svg | base64 -w 0)') },"
  done
  echo "];</script><script type=module>"
  cat "$checks"
  echo "</script>"
} >test.html
HOME=$PWD timeout 50 chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
  --user-data-dir="$PWD/profile" --window-size=1400,1600 --enable-logging=stderr --dump-dom \
  "file://$PWD/test.html" >dom.html 2>log.txt || { cat log.txt; exit 1; }
if ! grep -o '<pre id="result">all [0-9]* checks passed</pre>' dom.html; then
  sed -n '/<pre id="result">/,/<\/pre>/p' dom.html
  grep CONSOLE log.txt || true
  exit 1
fi

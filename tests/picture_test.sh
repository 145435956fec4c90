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

# in_browser PAGE EXPECTED CHECKS: the page, preceded by what catches its errors, and followed by what
# is expected of its plans and by the checks.
in_browser() {
  {
    echo "<script>errors = []; onerror = (text) => { errors.push(text); }</script>"
    cat "$1"
    echo "<script>expected = "
    cat "$2"
    echo ";</script><script type=module>"
    cat "$3"
    echo "</script>"
  } >test.html
  HOME=$PWD timeout 100 chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
    --user-data-dir="$PWD/profile" --window-size=1400,1600 --enable-logging=stderr --dump-dom \
    "file://$PWD/test.html" >dom.html 2>log.txt || { cat log.txt; exit 1; }
  grep -o '<pre id="result">all [0-9]* checks passed</pre>' dom.html && return
  sed -n '/<pre id="result">/,/<\/pre>/p' dom.html
  grep CONSOLE log.txt || true
  exit 1
}

{
  echo "["
  for plan in a.plan b.plan c.plan; do
    simulate() { "$pipec" simulate "$plan" --costs f=1,b=2,comm=0.25 --format "$@"; }
    echo "{ prediction: $(simulate json --why), text: atob('$("$pipec" show "$plan" | base64 -w 0)'),"
    echo "  svg: atob('$(simulate svg | base64 -w 0)') },"
  done
  echo "]"
} >expected.js
in_browser page.html expected.js "$checks"

# The peaks of 500 plans of all schemes and passes, whose times are no round numbers: one page has
# them all, and shows what simulate says.
RANDOM=1
mapfile -t schemes < <("$pipec" schemes --format json | grep -o '"name":"[^"]*"' | cut -d '"' -f 4)
passes=("" apply-checkpoint mario split-backward apply-checkpoint,overlap-recompute)
one_of() { local -n list=$1; echo "${list[RANDOM % ${#list[@]}]}"; }
cost() { printf '%s=%d.%04d%04d' "$1" $((RANDOM % $2)) $((RANDOM % 9999 + 1)) $((RANDOM % 10000)); }
made=0 tried=0 p2p=(async blocking)
mkdir plans
while ((made < 500)); do
  ((++tried <= 5000)) || { echo "only $made plans"; exit 1; }
  scheme=$(one_of schemes) options=()
  ((RANDOM % 2)) || options=(--stages-per-device $((RANDOM % 3 + 2)))
  costs=$(cost f 3),$(cost b 5),$(cost comm 1),$(cost latency 1),$(cost step 1),$(cost in 1)
  "$pipec" compile --quiet --scheme "$scheme" --devices $((RANDOM % 6 + 1)) \
    --microbatches $((RANDOM % 12 + 1)) --passes "$(one_of passes)" --p2p "$(one_of p2p)" \
    --costs "$costs" "${options[@]}" -o "plans/$(printf '%03d' $made).plan" 2>refused.txt || continue
  ((++made))
done
((made == 500))
"$pipec" simulate plans/*.plan --format html --quiet >page.html
"$pipec" simulate plans/*.plan --format json >expected.js
in_browser page.html expected.js "${checks%.js}_peaks.js"

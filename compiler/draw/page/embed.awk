# Turns a page into a C++ header with one string, called `name`: the page, with each script's text
# in place of the element that names its file.
#
#   <script src="plans.js"></script>  =>  <script> ... </script>

BEGIN { print "#pragma once\ninline constexpr char " name "[] = R\"page(" }

/<script src=/ {
  split($0, word, "\"")
  file = FILENAME
  sub(/[^\/]*$/, word[2], file)
  print "<script>"
  while ((status = getline line < file) > 0) print line
  print "</script>"
  if (status < 0) exit 1
  next
}

{ print }

END { print ")page\";" }

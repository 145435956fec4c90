// What may be wrong with a command line before any value is read: the parser's own words for it do
// not say which option was meant.
#pragma once

#include <string>
#include <vector>

#include "schema/base/status.h"

namespace CLI {
class App;
}

namespace pp {

// Invalid: an option that there is not, one that is given twice or without a value, or a second
// word where an option or the plan takes one.
Status CheckWords(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace pp

// The names of files that a user gives: a name, or a pattern such as 'data/*.bin'.
#pragma once

#include <string>
#include <vector>

#include "schema/base/status.h"

namespace pp {

// Each name in its place: one of something that is there, or without any of * ? [, as it is
// (whether it can be opened is not asked); else the files that it matches as a pattern of glob(7),
// sorted. Where it matches PREFIX.bin and PREFIX.idx, which are one dataset of Megatron, that is
// taken once, as PREFIX.bin. Invalid: a pattern that matches nothing. Failed: a folder of it cannot
// be read.
Result<std::vector<std::string>> ExpandPatterns(const std::vector<std::string>& names);

}  // namespace pp

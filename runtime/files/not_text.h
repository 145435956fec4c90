// What a file of data is that holds no text to train on, though its bytes could be read as one: a
// compressed file, a table, a list of JSON objects. By its name or its first bytes.
#pragma once

#include <string>

#include "schema/base/disk.h"
#include "schema/base/status.h"

namespace pp {

// "gzip data", "JSON"; empty: it may be a text. Failed: it cannot be read.
Result<std::string> NotText(const std::string& path, const InputFile& file);

}  // namespace pp

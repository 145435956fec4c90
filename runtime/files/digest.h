// Whether two ranks have the same file.
#pragma once

#include <cstdint>

#include "schema/base/disk.h"
#include "schema/base/status.h"

namespace pp {

// XXH3 of a file's length and of its bytes: of all of them up to 256 MiB; of a larger one, of 4096
// pieces of 64 KiB, evenly spread from the first byte to the last. Failed: it cannot be read.
Result<uint64_t> Digest(const InputFile& file);

}  // namespace pp

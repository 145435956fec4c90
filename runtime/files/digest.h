// Whether two ranks have the same files.
#pragma once

#include <cstdint>
#include <span>

#include "schema/base/disk.h"
#include "schema/base/status.h"

namespace pp {

// XXH3 of a file's length and of its bytes: of all of them up to 256 MiB; of a larger one, of 4096
// pieces of 64 KiB, evenly spread from the first byte to the last. Failed: it cannot be read.
Result<uint64_t> Digest(const InputFile& file);

// Of several, in their order: where they have more than 256 MiB together, each gets its share of
// the pieces, and at least its first and its last one. Of one file: as above.
Result<uint64_t> Digest(std::span<const InputFile* const> files);

}  // namespace pp

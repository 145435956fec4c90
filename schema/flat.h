// A program as a FlatBuffer (program.fbs) and back: the only code that uses FlatBuffers, hidden by
// file.h.
#pragma once

#include <cstdint>
#include <string_view>

#include "schema/program.h"
#include "schema/program_generated.h"
#include "schema/status.h"

namespace pp {

// Columns are written and read in their in-memory representation.
static_assert(FLATBUFFERS_LITTLEENDIAN, "plan files are little-endian");

inline constexpr uint32_t kPlanFormat = 4;
// The way out that errors suggest.
inline constexpr const char* kRightPlan = "a plan that pipec wrote";

// Invalid: it would take more than `most_bytes`.
Result<flatbuffers::DetachedBuffer> ToFlat(const Program& program, int64_t most_bytes);

// Whose lists are wanted.
struct Selection {
  enum class Whose { kAll, kDevice, kRank };
  Whose whose = Whose::kAll;
  int number = 0;  // of the device or rank; rank: of rank's device in its replica
};

// Invalid: the bytes are not a plan, or one that CheckFields refuses.
Result<Program> FromFlat(std::string_view flatbuffer, const Selection& selection);

}  // namespace pp

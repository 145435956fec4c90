// A program as a FlatBuffer (program.fbs) and back: the only code that uses FlatBuffers, hidden by
// file.h.
#pragma once

#include <cstdint>
#include <iterator>
#include <string_view>
#include <type_traits>

#include "schema/base/status.h"
#include "schema/base/version.h"
#include "schema/program.h"
#include "schema/program_generated.h"

namespace pp {

// Columns are written and read in their in-memory representation.
static_assert(FLATBUFFERS_LITTLEENDIAN, "plan files are little-endian");

// The way out that errors suggest.
inline constexpr const char* kRightPlan = "a plan that pipec wrote";

// Calls visit(column, name, member) for each column of table Instructions but `op`, in the file's
// order; member(instruction) is a reference to what the column has of it.
template <typename Visit>
void ForEachColumn(Visit visit) {
  constexpr auto kOffsets = std::size(kOffsetColumns);
  for (int column = 1; column <= kFieldCount + static_cast<int>(kOffsets); ++column) {
    ForEachField([&](const auto& info) {
      if (info.column == column)
        visit(
            column, info.name, [&](auto& i) -> auto& { return i.*info.member; });
    });
    for (size_t k = 0; k < kOffsets; ++k)
      if (kOffsetColumns[k] == column)
        visit(
            column, "offset", [&](auto& i) -> auto& { return i.offset[k]; });
  }
}
// A column's entry: flags and kinds are bytes.
template <typename T>
using Entry = std::conditional_t<IsNumber<T>, T, uint8_t>;

// Invalid: it would take more than `most_bytes`.
Result<flatbuffers::DetachedBuffer> ToFlat(const Program& program, int64_t most_bytes);

// Whose lists are wanted.
struct Selection {
  enum class Whose { kAll, kDevice, kRank };
  Whose whose = Whose::kAll;
  int number = 0;  // of the device or rank
};

// Invalid: the bytes are not a plan, or one that CheckFields refuses.
Result<Program> FromFlat(std::string_view flatbuffer, const Selection& selection);

}  // namespace pp

#include "runtime/main/transports.h"

#include <algorithm>
#include <array>

namespace pp {
namespace {

constexpr InsideHost kShm = InsideHost::kSharedMemory, kMpi = InsideHost::kMpi;

// clang-format off
constexpr TransportRow kRows[] = {
    // name       threads  processes  one_process  inside  nccl   can_be_slowed
    {"auto",      true,    true,      false,       kShm,   false, true},
    {"threads",   true,    false,     false,       kShm,   false, true},
    {"shm",       false,   true,      false,       kShm,   false, true},
    {"mpi",       false,   true,      true,        kMpi,   false, true},
    {"nccl",      true,    true,      false,       kShm,   true,  false},
};
// clang-format on

}  // namespace

std::span<const std::string_view> TransportNames() {
  static constexpr auto kNames = [] {
    std::array<std::string_view, std::size(kRows)> names;
    for (size_t i = 0; i < names.size(); ++i) names[i] = kRows[i].name;
    return names;
  }();
  return kNames;
}

const TransportRow& TransportOf(std::string_view name) {
  const auto* row = std::find_if(std::begin(kRows), std::end(kRows),
                                 [&](const TransportRow& one) { return one.name == name; });
  return row == std::end(kRows) ? kRows[0] : *row;
}

}  // namespace pp

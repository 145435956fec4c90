#include "runtime/main/transports.h"

#include <algorithm>
#include <iterator>

#include "runtime/run/run_options_table.h"

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

static_assert(std::equal(std::begin(kRows), std::end(kRows), std::begin(option_names::kTransports),
                         std::end(option_names::kTransports),
                         [](const TransportRow& row, std::string_view name) {
                           return row.name == name;
                         }));

}  // namespace

const TransportRow& TransportOf(std::string_view name) {
  const auto* row = std::find_if(std::begin(kRows), std::end(kRows),
                                 [&](const TransportRow& one) { return one.name == name; });
  return row == std::end(kRows) ? kRows[0] : *row;
}

}  // namespace pp

// The methods that the search is made of. One can be left out, to see what it gains
// (tools/ablate_search).
#pragma once

#include <cstdint>

namespace pp::search {

enum class Method : uint8_t {
  kNone,
  kRelated,       // other schemes' orders as starts
  kDropAll,       // the start with all recomputed
  kPlaceWeights,  // the start with its weight halves placed anew
  kSteady,        // a plan for few micro-batches, repeated
  kLowerLimits,   // the plans of lower limits of the grid
  kVary,          // local search on a policy's rules
  kImitate,       // and on those that lead to the best plan
  kOtherStart,    // local search also from slower plans
  kAnneal,        // local search on the plan itself
  kCritical,      // of it: moves of critical tasks
  kAcross,        // of it: moves of a micro-batch on several stages
  kToggle,        // of it: drops and keeps
  kPolicy,        // the first policy; those after it follow
};
inline constexpr int kPolicyCount = 18;
inline constexpr int kMethodCount = static_cast<int>(Method::kPolicy) + kPolicyCount;

constexpr Method PolicyMethod(int policy) {
  return static_cast<Method>(static_cast<int>(Method::kPolicy) + policy);
}

}  // namespace pp::search

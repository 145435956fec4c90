// What a run can be compared by: values and states of a step, by names that are the same on any
// number of devices.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/model/parameters.h"
#include "runtime/model/stretch.h"
#include "runtime/record/fingerprint.h"
#include "schema/program.h"

namespace pp {

// In the order in which a difference spreads.
enum class Checked : uint8_t {
  kAct,      // act(s,m)
  kLoss,     // of a micro-batch
  kGrad,     // grad(s,m)
  kOwnSum,   // wgrad(s), summed over the micro-batches of one copy
  kSum,      // wgrad(s) after all reductions
  kNorm,     // of all gradients
  kWeights,  // after STEP
};

struct ValueName {
  int64_t step = 0;  // of this run
  Checked what = Checked::kAct;
  int32_t replica = -1;  // kAct to kOwnSum
  int32_t micro = -1;    // kAct to kGrad
  int32_t pipe = -1;     // kOwnSum
  int32_t depth = -1;    // of a stage: from the first one, for kGrad from the last one
  int32_t tensor = -1;   // kOwnSum, kSum, kWeights: its index in the stage

  auto operator<=>(const ValueName&) const = default;
};

// "grad s1 m3 of replica 0", "wgrad s0 h.3.ln_1.weight after its reductions".
std::string TextOf(const ValueName& name, const Job& job);

// One rank's part of a value.
struct ValueRecord {
  ValueName name;
  // The copy and the tensor-parallel peer that have all of the value; -1: each of them has a part,
  // and the parts are added.
  int32_t copy = -1, peer = -1;
  Fingerprint print;
};

// Makes the records of one rank. Stages and copies are the program's.
class ValueReader {
 public:
  ValueReader(const Program& program, int replica, int index);

  const StageLayout& layout(int stage);
  // act(s,m) or grad(s,m), at `at`.
  ValueRecord Activation(const ValueName& name, const std::byte* at) const;
  ValueRecord Scalar(const ValueName& name, double number) const;
  // f(record) for each tensor of a stage, or for each part that its copy in `pipe` owns: of its
  // gradient or its weights. `name` covers all tensors.
  enum class Numbers : uint8_t { kWgrad, kWeights };
  enum class Whose : uint8_t { kAll, kOwned };
  template <typename F>
  void Tensors(ValueName name, int stage, int pipe, Whose whose, Numbers numbers,
               const std::byte* base, const F& f) {
    Stage& here = StageOf(stage);
    const auto& parts = whose == Whose::kAll ? here.all : Owned(here, pipe);
    const bool sharded = whose == Whose::kOwned && program_.zero > 0 && program_.Copies() > 1;
    for (const OwnedPart& owned : parts) {
      const Tensor& tensor = *owned.part.tensor;
      name.tensor = static_cast<int32_t>(&tensor - here.layout.tensors.data());
      ValueRecord record{.name = name,
                         .copy = sharded ? -1 : CopyOf(pipe),
                         .peer = tensor.cut == Cut::kNone ? index_ : -1,
                         .print = {}};
      const int64_t offset = numbers == Numbers::kWgrad ? tensor.wgrad : tensor.weight;
      const auto* first = reinterpret_cast<const float*>(base + offset);
      for (const Stretch& stretch :
           Within(here.stretches[name.tensor], owned.part.begin, owned.part.count))
        record.print.Add(first + stretch.local, stretch.element, stretch.count);
      f(record);
    }
  }

 private:
  struct Stage {
    StageLayout layout;
    std::vector<OwnedPart> all;
    std::map<int, std::vector<OwnedPart>> owned;  // by pipe
    std::vector<std::vector<Stretch>> stretches;  // by tensor
  };
  Stage& StageOf(int stage);
  const std::vector<OwnedPart>& Owned(Stage& stage, int pipe);
  int32_t CopyOf(int pipe) const {
    return replica_ * static_cast<int32_t>(program_.pipes.size()) + pipe;
  }

  const Program& program_;
  const int replica_, index_;
  std::map<int, Stage> stages_;
};

}  // namespace pp

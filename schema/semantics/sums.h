// The weight gradients of one device while its list is walked: has every micro-batch added its
// part, are they reduced over all copies, is the norm taken, has every stage made its step?
//
//   BW ..  -> REDUCE_grad b0 .. WAIT  -> NORM_grad -> REDUCE_norm WAIT -> STEP
//   BW ..  -> SCATTER_grad b0 .. WAIT -> NORM_grad -> REDUCE_norm WAIT -> STEP -> GATHER_weights
//             (zero 1: a copy keeps, norms and updates its shard of each bucket, then gathers the
//             others'; of a tied tensor it norms its shard in the first stage)
//   BW ..  -> REDUCE_tied WAIT        -> NORM_grad   of stages that share a tensor, in addition to
//             the other buckets
//
// What a program does not need can be left out: without other copies nothing is reduced or
// gathered, without tied stages there is no REDUCE_tied, with clip off there is no norm. Where
// a device keeps several versions of its weights (STEP with a version), a step takes what has been
// added since the last one, and there is no norm either.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "schema/base/status.h"
#include "schema/program.h"
#include "schema/semantics/placement.h"

namespace pp {

// How far a program has been lowered.
enum class Depth {
  kSchedule,  // compute instructions only; what other devices make is simply available
  kLists,     // with communication, reductions and steps
  kPlan,      // with memory
};

class Sums {
 public:
  // `bodies`: see WalkArgs.
  Sums(const Program& program, const Placement& placement, int device, Depth depth, int bodies);

  // list[index], a backward, adds its part.
  Status AddPart(const Instruction& i, int index);
  // A reduction, the norm or a step. *after: the compute instruction that must be over before a
  // reduction may start, -1: none.
  Status Visit(const Instruction& i, int index, int* after);
  // The end of a reduction, whose index is *after.
  Status Wait(const Instruction& i, int* after);
  // Nothing may be left over. *index: the instruction that the error is about, -1: none.
  Status CheckEnd(int* index);
  // The same between two plain bodies; then everything starts over.
  Status NextBody(int* index);

  // That `i`, which uses weights, says which, where there are several.
  Status CheckVersion(const Instruction& i) const;
  // How many updates they have had; -1 where there is one version.
  int32_t VersionOf(const Instruction& i) const;

 private:
  struct BucketCount {
    int all = -1, reduced = 0;  // gathered, and reduced by REDUCE_grad or SCATTER_grad
  };
  // One copy of a stage.
  struct Sum {
    int stage = 0, pipe = 0;
    int64_t all_parts = 0;              // micro-batches that add to it in a body
    mutable BucketCount buckets;        // all -1: not asked yet
    int64_t parts = 0;                  // micro-batches that have added to it since the last step
    int32_t last_part = -1;             // index of the last one
    int32_t flying = 0;                 // reductions that have not been waited for
    int32_t reduced = 0, gathered = 0;  // buckets
    bool tied = false, normed = false, stepped = false;
    int64_t stepped_parts = 0;
    int32_t steps = 0, last_step = -1;
  };
  // WAITs for reductions, by what they wait for.
  struct ByWait {
    bool operator()(const Instruction& a, const Instruction& b) const {
      return std::tie(a.stage, a.pipe, a.bucket, a.value) <
             std::tie(b.stage, b.pipe, b.bucket, b.value);
    }
  };

  // Null where the device does not hold that copy.
  const Sum* Find(int stage, int pipe) const;
  Sum* Find(int stage, int pipe);
  const BucketCount& BucketsIn(const Sum& sum) const;
  bool Sharded() const { return program_.zero == 1 && program_.Copies() > 1; }
  bool HasNorm(const Sum& sum) const { return sum.pipe == 0 || Sharded(); }
  Status Complete(const Sum& sum) const;
  Status Final(const Sum& sum);
  Status StartBucket(Sum& sum, const Instruction& i, int index, int* after);
  Status StartTied(int index, int* after);
  Status Norm(Sum& sum, int index);
  Status StartNorm(int index, int* after);
  Status Step(Sum& sum, const Instruction& i, int index);
  std::vector<Sum*> TiedSums();

  const Program& program_;
  const int device_;
  const Depth depth_;
  std::vector<Sum> sums_;                           // ascending, by stage and then by pipe
  std::multimap<Instruction, int, ByWait> flying_;  // the WAIT of a reduction -> its index
  int last_norm_ = -1;
  bool versions_ = false;  // a STEP makes a new version of the weights
  bool norm_ = false;      // a STEP needs the norm
  bool tied_started_ = false, norm_started_ = false, norm_here_ = false;
};

}  // namespace pp

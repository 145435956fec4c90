// plan-memory: an offset in the device's arena for everything that has bytes.
//
// First the regions that live from the first step to the last (weights, gradients,
// optimizer, ...), then the values of a step. Values of the same size share a pile of
// blocks: a value takes a free block of its size, or a new one at the end. A block comes
// free with the last instruction that uses it; bytes that are being sent, with the WAIT
// for the end of that send. So the arena's size is the peak, known before the run.
//
//   FW s0 m0  =>  FW s0 m0   act at 4096, stash at 8192
//   FW s0 m1  =>  FW s0 m1   act at 4096, stash at 73728
#include <algorithm>
#include <unordered_map>

#include "compiler/pass.h"
#include "schema/regions.h"
#include "schema/walk.h"

namespace pp {
namespace {

class Planner : public MemoryPolicy {
 public:
  Planner(std::vector<Instruction>* list, int64_t begin) : list_(list), end_(begin), peak_(begin) {}

  Status Take(const Claim& claim, int64_t* offset, int32_t* last_use) override {
    std::vector<int64_t>& pile = free_[claim.bytes];
    if (pile.empty()) {
      *offset = end_;
      peak_ = end_ + claim.bytes;
      end_ = (peak_ + kAlign - 1) / kAlign * kAlign;
    } else {
      *offset = pile.back();
      pile.pop_back();
    }
    *last_use = -1;
    (*list_)[claim.index].offset[claim.slot] = *offset;
    return {};
  }
  void Free(int64_t offset, int64_t bytes, int) override { free_[bytes].push_back(offset); }

  int64_t peak() const { return peak_; }

 private:
  std::vector<Instruction>* list_;
  std::unordered_map<int64_t, std::vector<int64_t>> free_;  // by size
  int64_t end_, peak_;
};

}  // namespace

Status PlanMemory(Program& program, const PassContext&) {
  const ValueBytes bytes(program);
  for (int device = 0; device < program.devices; ++device) {
    DeviceList& list = program.lists[device];
    list.regions = RegionsOf(program, device);
    int64_t begin = 0;
    if (!list.regions.empty()) begin = list.regions.back().offset + list.regions.back().bytes;
    Planner planner(&list.body, (begin + kAlign - 1) / kAlign * kAlign);
    PP_RETURN_IF_ERROR(WalkList(program, device, list.body,
                                {.depth = Depth::kPlan, .memory = &planner, .bytes = &bytes}));
    list.arena_bytes = planner.peak();
  }
  return {};
}

}  // namespace pp

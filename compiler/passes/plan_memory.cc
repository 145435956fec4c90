// plan-memory: an offset in the device's arena for everything that has bytes.
//
// First the regions that live from the first step to the last (weights, gradients, optimizer, ...),
// then the values of a step. Values of the same size share a pool of blocks: a value takes a free
// block of its size, or a new one at the end. A block becomes free with the last instruction that
// uses it; bytes that are being sent, with the WAIT for the end of that send. So the arena's size
// is the peak, known before the run.
//
//   FW s0 m0  =>  FW s0 m0   act at 4096, stash at 8192
//   FW s0 m1  =>  FW s0 m1   act at 4096, stash at 73728
#include <algorithm>
#include <climits>
#include <tuple>
#include <unordered_map>

#include "compiler/pass.h"
#include "schema/regions.h"
#include "schema/sections.h"
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

// Records when each value of an unrolled list begins and ends. Gives every value its own place.
class LifeRecorder : public MemoryPolicy {
 public:
  struct Life {
    int64_t bytes;
    int begin, slot;
    int end = INT_MAX;  // list indices
  };
  Status Take(const Claim& claim, int64_t* offset, int32_t* last_use) override {
    *offset = static_cast<int64_t>(lives_.size());
    *last_use = -1;
    lives_.push_back({claim.bytes, claim.index, claim.slot});
    return {};
  }
  void Free(int64_t offset, int64_t, int index) override { lives_[offset].end = index; }
  const std::vector<Life>& lives() const { return lives_; }

 private:
  std::vector<Life> lives_;
};

// If steps overlap, a value that is passed to the next body must have the same place in all bodies:
// such values get blocks that nothing else uses; the others share as usual. `unrolled`: the program
// with one body.
Status PlanOverlapping(Program& program, const Program& unrolled, const Placement& placement,
                       int device, const ValueBytes& bytes, int64_t begin) {
  DeviceList& list = program.lists[device];
  const int length = static_cast<int>(list.body.size());
  const int first = static_cast<int>(list.prologue.size());
  LifeRecorder recorder;
  PP_RETURN_IF_ERROR(WalkList(
      unrolled, device, unrolled.lists[device].body,
      {.depth = Depth::kPlan, .placement = &placement, .memory = &recorder, .bytes = &bytes}));
  // The lives that begin and end in the body, as events in its order.
  struct Event {
    int index;
    bool begins;
    const LifeRecorder::Life* life;
  };
  std::vector<Event> events;
  int64_t end = begin;
  for (const auto& life : recorder.lives()) {
    if (life.begin < first || life.begin >= first + length) continue;
    if (life.end < first + length) {
      events.push_back({life.begin - first, true, &life});
      events.push_back({life.end - first, false, &life});
    } else {
      list.body[life.begin - first].offset[life.slot] = end;
      end = (end + life.bytes + kAlign - 1) / kAlign * kAlign;
    }
  }
  // What an instruction reads becomes free only after it.
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::tuple(a.index, !a.begins) < std::tuple(b.index, !b.begins);
  });
  Planner shared(&list.body, end);
  for (const Event& event : events) {
    int64_t& offset = list.body[event.life->begin - first].offset[event.life->slot];
    int32_t last_use = -1;
    if (event.begins) {
      PP_RETURN_IF_ERROR(
          shared.Take({{}, event.life->bytes, event.index, event.life->slot}, &offset, &last_use));
    } else {
      shared.Free(offset, event.life->bytes, event.index);
    }
  }
  list.arena_bytes = std::max(end, shared.peak());
  return {};
}

}  // namespace

Status PlanMemory(Program& program, const PassContext&) {
  const ValueBytes bytes(program);
  const Placement placement(program);
  const Regions regions(program);
  const bool overlaps = HasSections(program);
  const Program unrolled = overlaps ? Unroll(program, 1) : Program();
  for (int device = 0; device < program.devices; ++device) {
    DeviceList& list = program.lists[device];
    if (!program.evaluates) list.regions = regions.On(device);
    int64_t begin = 0;
    if (!list.regions.empty()) begin = list.regions.back().offset + list.regions.back().bytes;
    begin = (begin + kAlign - 1) / kAlign * kAlign;
    if (overlaps) {
      PP_RETURN_IF_ERROR(PlanOverlapping(program, unrolled, placement, device, bytes, begin));
      continue;
    }
    Planner planner(&list.body, begin);
    PP_RETURN_IF_ERROR(WalkList(
        program, device, list.body,
        {.depth = Depth::kPlan, .placement = &placement, .memory = &planner, .bytes = &bytes}));
    list.arena_bytes = planner.peak();
  }
  DeriveSections(program);
  return {};
}

}  // namespace pp

// plan-memory: an offset in the device's arena for everything that has bytes.
//
// First the regions that live from the first step to the last (weights, gradients, optimizer, ...),
// then the values of a step, whose lives the list says: from the instruction that writes a value to
// the last one that uses it, or, where it is sent, to the WAIT for the end of that send. Routines
// beside the step have the same bytes for their values. So the arena's size is the peak of the one
// that needs the most, known before the run.
//
//   FW s0 m0  =>  FW s0 m0   act at 4096, stash at 8192
//   FW s0 m1  =>  FW s0 m1   act at 4096, stash at 73728
//
// Two ways are tried, and the one with the smaller arena is taken:
//   pools    values of one size share blocks: a value takes a free one, or a new one at the end. A
//            message takes the one that has been free for longest, as its receive waits for the
//            last use, in the step before as well; others the last one used, which caches have
//   by size  (Pisarchyk and Lee, 2020, "Efficient Memory Management for Deep Neural Net Inference",
//            greedy by size) the larger ones first, each at the lowest place where nothing lies
//            during its life; messages, whose bytes a receive may wait for, stay in pools
#include <algorithm>
#include <climits>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compiler/pass.h"
#include "schema/routines.h"
#include "schema/sections.h"
#include "schema/semantics/regions.h"
#include "schema/semantics/walk.h"

namespace pp {
namespace {

int64_t AlignUp(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

struct Life {
  int64_t bytes;
  bool message;
  int begin, slot;    // the instruction that writes it
  int end = INT_MAX;  // the last one that uses it
};

// Records the lives of a list's values. Gives each its own place.
class LifeRecorder : public MemoryPolicy {
 public:
  struct Event {
    int32_t life;
    bool begins;
  };
  Status Take(const Claim& claim, int64_t* offset, int32_t* last_use) override {
    *offset = static_cast<int64_t>(lives.size());
    *last_use = -1;
    events.push_back({static_cast<int32_t>(lives.size()), true});
    const Kind kind = claim.value.kind;
    lives.push_back(
        {claim.bytes, kind == Kind::kAct || kind == Kind::kGrad, claim.index, claim.slot});
    return {};
  }
  void Free(int64_t offset, int64_t, int index) override {
    lives[offset].end = index;
    events.push_back({static_cast<int32_t>(offset), false});
  }

  std::vector<Life> lives;
  std::vector<Event> events;  // in the order of the list
};

// By life, from `begin` on; -1 of those that have no place here.
struct Places {
  std::vector<int64_t> offsets;
  int64_t end;  // of the last one
};

// `placed`: by life, whether it is to have a place.
Places InPools(const LifeRecorder& recorder, const std::vector<bool>& placed, int64_t begin) {
  Places places{std::vector<int64_t>(recorder.lives.size(), -1), begin};
  std::unordered_map<int64_t, std::deque<int64_t>> free;  // by size; since when, ascending
  for (const auto [life, begins] : recorder.events) {
    if (!placed[life]) continue;
    const int64_t bytes = recorder.lives[life].bytes;
    std::deque<int64_t>& pile = free[bytes];
    int64_t& offset = places.offsets[life];
    if (!begins) {
      pile.push_back(offset);
    } else if (pile.empty()) {
      offset = AlignUp(places.end);
      places.end = offset + bytes;
    } else if (recorder.lives[life].message) {
      offset = pile.front();
      pile.pop_front();
    } else {
      offset = pile.back();
      pile.pop_back();
    }
  }
  return places;
}

Places BySize(const LifeRecorder& recorder, const std::vector<bool>& placed, int64_t begin) {
  const std::vector<Life>& lives = recorder.lives;
  std::vector<bool> messages = placed;
  std::vector<int32_t> others;
  for (size_t i = 0; i < lives.size(); ++i) {
    if (placed[i] && !lives[i].message) others.push_back(static_cast<int32_t>(i));
    messages[i] = placed[i] && lives[i].message;
  }
  Places places = InPools(recorder, messages, begin);
  const int64_t first = AlignUp(places.end);
  std::stable_sort(others.begin(), others.end(),
                   [&](int32_t a, int32_t b) { return lives[a].bytes > lives[b].bytes; });
  std::vector<std::pair<int64_t, int32_t>> taken;  // ascending: offset, life
  for (const int32_t i : others) {
    int64_t offset = first;
    for (const auto& [other_offset, other] : taken) {
      if (lives[other].begin > lives[i].end || lives[other].end < lives[i].begin) continue;
      if (other_offset >= offset + lives[i].bytes) break;
      offset = std::max(offset, AlignUp(other_offset + lives[other].bytes));
    }
    const std::pair place(offset, i);
    taken.insert(std::upper_bound(taken.begin(), taken.end(), place), place);
    places.offsets[i] = offset;
    places.end = std::max(places.end, offset + lives[i].bytes);
  }
  return places;
}

// The better of both; the second one takes the square of the number of lives.
Places Place(const Program& program, const LifeRecorder& recorder, const std::vector<bool>& placed,
             int64_t begin) {
  constexpr double kMostSteps = 2e8;
  Places places = InPools(recorder, placed, begin);
  const auto lives = static_cast<double>(recorder.lives.size());
  if (!program.job || lives * lives * program.devices > kMostSteps) return places;
  Places by_size = BySize(recorder, placed, begin);
  return by_size.end < places.end ? by_size : places;
}

// If steps overlap, a value that is passed to the next body must have the same place in all bodies:
// such values get blocks that nothing else uses; the others share as usual. `recorder`: of the
// program unrolled with one body.
void PlaceOverlapping(const Program& program, int device, const LifeRecorder& recorder,
                      int64_t begin, DeviceList* list) {
  const int length = static_cast<int>(list->body.size());
  const int first = PrologueSize(program, device);
  std::vector<bool> shares(recorder.lives.size(), false);
  int64_t end = begin;
  for (size_t i = 0; i < recorder.lives.size(); ++i) {
    const Life& life = recorder.lives[i];
    if (life.begin < first || life.begin >= first + length) continue;
    shares[i] = life.end < first + length;
    if (shares[i]) continue;
    list->body[life.begin - first].offset[life.slot] = end;
    end = AlignUp(end + life.bytes);
  }
  const Places places = Place(program, recorder, shares, end);
  for (size_t i = 0; i < recorder.lives.size(); ++i)
    if (shares[i])
      list->body[recorder.lives[i].begin - first].offset[recorder.lives[i].slot] =
          places.offsets[i];
  list->arena_bytes = std::max(end, places.end);
}

// The values of the bodies, behind the regions.
Status PlaceValues(Program& program) {
  const ValueBytes bytes(program);
  const Placement placement(program);
  const bool overlaps = program.overlaps;
  const Program unrolled = overlaps ? Unroll(program, 1) : Program();
  for (int device = 0; device < program.devices; ++device) {
    DeviceList& list = program.lists[device];
    int64_t begin = 0;
    if (!list.regions.empty()) begin = list.regions.back().offset + list.regions.back().bytes;
    begin = AlignUp(begin);
    const auto& walked = overlaps ? unrolled.lists[device].body : list.body;
    LifeRecorder recorder;
    PP_RETURN_IF_ERROR(WalkList(
        overlaps ? unrolled : program, device, walked,
        {.depth = Depth::kPlan, .placement = &placement, .memory = &recorder, .bytes = &bytes}));
    if (overlaps) {
      PlaceOverlapping(program, device, recorder, begin, &list);
      continue;
    }
    const Places places =
        Place(program, recorder, std::vector<bool>(recorder.lives.size(), true), begin);
    for (size_t i = 0; i < recorder.lives.size(); ++i)
      list.body[recorder.lives[i].begin].offset[recorder.lives[i].slot] = places.offsets[i];
    list.arena_bytes = places.end;
  }
  return {};
}

}  // namespace

Status PlanMemory(Program& program, const PassContext&) {
  const Regions regions(program);
  for (int d = 0; d < program.devices; ++d) program.lists[d].regions = regions.On(d);
  PP_RETURN_IF_ERROR(PlaceValues(program));
  for (size_t r = 0; r < program.routines.size(); ++r) {
    Program routine = RoutineOf(program, r);
    PP_RETURN_IF_ERROR(PlaceValues(routine));
    for (int d = 0; d < program.devices; ++d) {
      DeviceList& list = program.lists[d];
      list.routines[r] = std::move(routine.lists[d].body);
      list.arena_bytes = std::max(list.arena_bytes, routine.lists[d].arena_bytes);
    }
  }
  return {};
}

}  // namespace pp

#include "schema/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <type_traits>

#include "schema/text.h"

namespace pp {
namespace {

constexpr int kSlots = std::extent_v<decltype(Instruction::offset)>;

}  // namespace

ValueBytes::ValueBytes(const Program& program) {
  for (auto& stages : bytes_) stages.assign(program.stages, 0);
  auto of = [&](Kind kind, int stage) -> int64_t& {
    return bytes_[static_cast<size_t>(kind)][stage];
  };
  for (int s = 0; s < program.stages; ++s) {
    const bool first = s == 0, last = s == program.stages - 1;
    if (program.job) {
      const StageLayout layout = LayoutStage(*program.job, s);
      of(Kind::kTokens, s) = layout.tokens_bytes;
      of(Kind::kTargets, s) = layout.targets_bytes;
      of(Kind::kAct, s) = layout.act_bytes;
      of(Kind::kGrad, s) = layout.grad_bytes;
      of(Kind::kStash, s) = layout.stash_bytes;
      of(Kind::kInput, s) = layout.kept_bytes;
      of(Kind::kWork, s) = layout.work_bytes;
    } else {
      of(Kind::kTokens, s) = first;
      of(Kind::kTargets, s) = last;
      of(Kind::kAct, s) = of(Kind::kGrad, s) = !last;
      of(Kind::kStash, s) = of(Kind::kWork, s) = 1;
    }
  }
}

// Blocks of memory by offset; no two overlap.
struct MemoryCheck::Blocks {
  struct Block {
    int64_t bytes;
    bool live;
    int32_t last_use;
  };
  std::map<int64_t, Block> at;
  int64_t arena_bytes;
  int64_t align;
  std::span<const Instruction> list;
  std::span<const Region> regions;
};

MemoryCheck::MemoryCheck(const Program& program, int device, std::span<const Instruction> list)
    : blocks_(new Blocks{{},
                         program.lists[device].arena_bytes,
                         program.job ? kAlign : 1,
                         list,
                         program.lists[device].regions}) {
  for (const Region& region : blocks_->regions)
    if (region.bytes > 0) blocks_->at[region.offset] = {region.bytes, true, -1};
}

MemoryCheck::~MemoryCheck() = default;

Status MemoryCheck::Take(const Claim& claim, int64_t* offset, int32_t* last_use) {
  auto& at = blocks_->at;
  const int64_t begin = blocks_->list[claim.index].offset[std::min<size_t>(claim.slot, kSlots - 1)];
  // For a block beyond any address, the last one.
  const int64_t end = claim.bytes + std::min(begin, INT64_MAX - claim.bytes);
  auto place = [&] { return fmt::format("{} at bytes {} to {}", ToText(claim.value), begin, end); };
  if (claim.slot >= kSlots || begin < 0 || begin > blocks_->arena_bytes ||
      end > blocks_->arena_bytes)
    return Status::Invalid(
        fmt::format("{} is outside the arena of {} bytes", place(), blocks_->arena_bytes));
  if (begin % blocks_->align != 0)
    return Status::Invalid(fmt::format("{} (multiples of {})", place(), blocks_->align));
  *offset = begin;
  *last_use = -1;
  auto found = at.lower_bound(begin);
  if (found != at.end() && found->first == begin && found->second.bytes == claim.bytes) {
    if (found->second.live) return Status::Invalid(place() + " overlaps a value in use");
    *last_use = found->second.last_use;
    found->second.live = true;
    return {};
  }
  // A different partition than before: forget the free blocks that it touches.
  if (found != at.begin() && std::prev(found)->first + std::prev(found)->second.bytes > begin)
    --found;
  while (found != at.end() && found->first < end) {
    if (found->second.live) return Status::Invalid(place() + " overlaps a value in use");
    *last_use = std::max(*last_use, found->second.last_use);
    const auto [old, block] = *found;
    found = at.erase(found);
    // The rest on either side of the new block stays a free block.
    if (old < begin) at[old] = {begin - old, false, block.last_use};
    if (old + block.bytes > end) at[end] = {old + block.bytes - end, false, block.last_use};
  }
  at[begin] = {claim.bytes, true, -1};
  return {};
}

void MemoryCheck::Free(int64_t offset, int64_t bytes, int index) {
  auto& block = blocks_->at[offset];
  block = {bytes, false, index};
}

}  // namespace pp

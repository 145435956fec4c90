#include "schema/semantics/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <type_traits>

#include "schema/semantics/alike.h"
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
    if (IsLikeBefore(program, s)) {
      for (auto& stages : bytes_) stages[s] = stages[s - 1];
    } else if (program.job) {
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
  using Map = std::map<int64_t, Block>;
  Map at;
  int64_t arena_bytes;
  int64_t align;
  std::span<const Instruction> list;
  std::span<const Region> regions;

  // The block at an offset that was asked for lately, without a search: most values lie where one
  // of their size lay before. at.end() where there is none.
  Map::iterator& AtHand(int64_t offset) {
    constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;  // Knuth's multiplicative hash
    return at_hand[static_cast<uint64_t>(offset) * kGolden >> (64 - kBits)];
  }
  Map::iterator Find(int64_t offset) {
    Map::iterator& hand = AtHand(offset);
    if (hand == at.end() || hand->first != offset) hand = at.find(offset);
    return hand;
  }
  Map::iterator Erase(Map::iterator block) {
    if (Map::iterator& hand = AtHand(block->first); hand == block) hand = at.end();
    return at.erase(block);
  }
  static constexpr int kBits = 8;
  std::vector<Map::iterator> at_hand = std::vector<Map::iterator>(1 << kBits, at.end());
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
  auto found = blocks_->Find(begin);
  if (found != at.end() && found->second.bytes == claim.bytes) {
    if (found->second.live) return Status::Invalid(place() + " overlaps a value in use");
    *last_use = found->second.last_use;
    found->second.live = true;
    return {};
  }
  // A different partition than before: forget the free blocks that it touches.
  found = at.lower_bound(begin);
  if (found != at.begin() && std::prev(found)->first + std::prev(found)->second.bytes > begin)
    --found;
  while (found != at.end() && found->first < end) {
    if (found->second.live) return Status::Invalid(place() + " overlaps a value in use");
    *last_use = std::max(*last_use, found->second.last_use);
    const auto [old, block] = *found;
    found = blocks_->Erase(found);
    // The rest on either side of the new block stays a free block.
    if (old < begin) at[old] = {begin - old, false, block.last_use};
    if (old + block.bytes > end) at[end] = {old + block.bytes - end, false, block.last_use};
  }
  at[begin] = {claim.bytes, true, -1};
  return {};
}

void MemoryCheck::Free(int64_t offset, int64_t bytes, int index) {
  const Blocks::Block free{bytes, false, index};
  if (const auto found = blocks_->Find(offset); found != blocks_->at.end()) {
    found->second = free;
  } else {
    blocks_->at[offset] = free;
  }
}

}  // namespace pp

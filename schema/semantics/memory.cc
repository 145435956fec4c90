#include "schema/semantics/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <type_traits>

#include "schema/semantics/extents.h"
#include "schema/text.h"

namespace pp {
namespace {

constexpr int kSlots = std::extent_v<decltype(Instruction::offset)>;

}  // namespace

ValueBytes::ValueBytes(const Program& program) : program_(program) {
  const int shapes = program.shapes();
  for (auto& all : bytes_) all.assign(program.stages * shapes, 0);
  const std::optional<Extents> extents =
      program.job ? std::optional<Extents>(program) : std::nullopt;
  for (int s = 0; s < program.stages; ++s)
    for (int shape = 0; shape < shapes; ++shape) {
      const auto of = [&](Kind kind) -> int64_t& {
        return bytes_[static_cast<size_t>(kind)][At(s, shape)];
      };
      if (!extents) {
        of(Kind::kTokens) = s == 0;
        of(Kind::kTargets) = s == program.stages - 1;
        of(Kind::kAct) = of(Kind::kGrad) = s < program.stages - 1;
        of(Kind::kStash) = of(Kind::kWork) = 1;
        continue;
      }
      const StageLayout& layout = extents->Of(s, shape);
      of(Kind::kTokens) = layout.tokens_bytes;
      of(Kind::kTargets) = layout.targets_bytes;
      of(Kind::kAct) = layout.act_bytes;
      of(Kind::kGrad) = layout.grad_bytes;
      of(Kind::kStash) = layout.stash_bytes;
      of(Kind::kInput) = layout.kept_bytes;
      of(Kind::kWork) = layout.work_bytes;
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

#include "schema/semantics/regions.h"

#include <algorithm>
#include <set>
#include <utility>

#include "schema/model/layout.h"
#include "schema/model/workspace.h"
#include "schema/routines.h"
#include "schema/semantics/buckets.h"

namespace pp {
namespace {

// Ranks that hold an end of the model: those that REDUCE_tied sums over.
int64_t TiedMembers(const Program& program) {
  std::set<int> devices;
  for (const Pipe& pipe : program.pipes)
    devices.insert({pipe.device_of.front(), pipe.device_of.back()});
  return static_cast<int64_t>(devices.size()) * program.replicas;
}

// More bytes than any arena has, and few enough to be added.
constexpr int64_t kTooMany = int64_t{1} << 61;

int64_t Times(int64_t count, int64_t bytes) {
  return bytes > kTooMany / count ? kTooMany : count * bytes;
}

}  // namespace

Regions::Regions(const Program& program)
    : program_(program), placement_(program), tied_members_(TiedMembers(program)) {
  if (!program.job) return;
  extents_.emplace(program);
  for (int stage = 0; stage < program.stages && program.clip; ++stage)
    norm_bytes_ +=
        program.job->tp * extents_->Of(stage, 0).norm_blocks * static_cast<int64_t>(sizeof(double));
}

std::vector<Region> Regions::On(int device) const {
  const Program& program = program_;
  std::vector<Region> regions;
  if (!program.job) return regions;
  int64_t end = 0;
  auto add = [&](Kind kind, int stage, int pipe, int64_t bytes) {
    if (bytes == 0) return;
    regions.push_back({kind, stage, pipe, end, bytes});
    end = std::min(kTooMany, (end + bytes + kAlign - 1) / kAlign * kAlign);
  };
  const DeviceKind backend = program.job->backend;
  int64_t scratch = 0, loss = 0, exchange = 0;
  const DeviceList& list = program.lists[device];
  const bool several = program.pipes.size() > 1, shards = program.zero == 1;
  const int64_t versions = VersionsOn(list);
  bool drops = false;
  ForEachList(list, [&](const std::vector<Instruction>& one) {
    drops |= std::any_of(one.begin(), one.end(),
                         [](const Instruction& i) { return i.op == Op::kForwardDrop; });
  });
  int32_t microbatches = program.microbatches;
  for (const Routine& routine : program.routines)
    microbatches = std::max(microbatches, routine.microbatches);
  for (const auto [stage, pipe] : placement_.On(device)) {
    const StageLayout& layout = extents_->Of(stage, 0);
    const int copy = several ? pipe : -1;
    add(Kind::kWeights, stage, copy, Times(versions, layout.weights_bytes));
    if (backend == DeviceKind::kCuda)
      add(Kind::kRounded, stage, copy, Times(versions, layout.rounded_bytes));
    add(Kind::kWgrad, stage, copy, layout.wgrad_bytes);
    add(Kind::kOptimizer, stage, copy,
        shards && program.Copies() > 1 ? MostOptimizerBytes(program, layout, pipe)
                                       : layout.optimizer_bytes);
    for (int shape = 0; shape < extents_->shapes(); ++shape) {
      const StageLayout& sized = extents_->Of(stage, shape);
      scratch = std::max(scratch, drops ? sized.drop_scratch_bytes : sized.scratch_bytes);
    }
    loss = std::max(loss, layout.loss_bytes * microbatches);
    if (program.Copies() > 1)
      exchange = std::max(exchange,
                          ExchangeBytes(backend, program.Copies(), LargestShard(program, layout)));
    if (layout.tied_bytes > 0)
      exchange = std::max(exchange,
                          ExchangeBytes(backend, tied_members_,
                                        (layout.tied_bytes + tied_members_ - 1) / tied_members_));
  }
  add(Kind::kScratch, -1, -1, scratch);
  add(Kind::kWorkspace, -1, -1, WorkspaceOf(*program.job).bytes);
  add(Kind::kLoss, program.stages - 1, -1, loss);
  if (program.clip)  // and the norm itself
    add(Kind::kNorm, -1, -1,
        norm_bytes_ + sizeof(double) +
            (InfoOf(program.job->dtype).scales_loss ? kLossScaleBytes : 0));
  add(Kind::kExchange, -1, -1, exchange);
  return regions;
}

std::vector<int64_t> AddRegions(DeviceKind backend, Program* program) {
  program->job->backend = backend;
  const Regions regions(*program);
  std::vector<int64_t> added(program->devices, 0);
  for (int device = 0; device < program->devices; ++device) {
    DeviceList& list = program->lists[device];
    const int64_t before = list.arena_bytes;
    std::vector<Region> needed = regions.On(device);
    for (Region& need : needed) {
      const auto found =
          std::find_if(list.regions.begin(), list.regions.end(), [&](const Region& region) {
            return region.kind == need.kind && region.stage == need.stage &&
                   region.pipe == need.pipe && region.bytes >= need.bytes;
          });
      if (found != list.regions.end()) {
        need.offset = found->offset;
      } else {
        need.offset = (list.arena_bytes + kAlign - 1) / kAlign * kAlign;
        list.arena_bytes = std::min(2 * kTooMany, need.offset + need.bytes);
      }
    }
    list.regions = std::move(needed);
    added[device] = list.arena_bytes - before;
  }
  return added;
}

}  // namespace pp

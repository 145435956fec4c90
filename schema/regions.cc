#include "schema/regions.h"

#include <algorithm>

#include "schema/buckets.h"
#include "schema/model.h"

namespace pp {
namespace {

// The two ends of a tied embedding exchange their gradients piece by piece.
constexpr int64_t kExchangePiece = 1 << 20;

int64_t ExchangeBytes(const Program& program, int device) {
  const ModelConfig& model = program.job->model;
  if (!model.tie_word_embeddings) return 0;
  for (const Pipe& pipe : program.pipes) {
    const int first = pipe.device_of.front(), last = pipe.device_of.back();
    if (first != last && (first == device || last == device))
      return std::min(kExchangePiece, int64_t{model.vocab_size} * model.n_embd * 4);
  }
  return 0;
}

// Versions of its weights that a device keeps: as many as it uses (prologue and epilogue are parts
// of the body).
int64_t Versions(const DeviceList& list) {
  int versions = 1;
  for (const Instruction& i : list.body) versions = std::max(versions, i.version + 1);
  return versions;
}

}  // namespace

std::vector<Region> RegionsOf(const Program& program, int device) {
  std::vector<Region> regions;
  if (!program.job) return regions;
  int64_t end = 0;
  auto add = [&](Kind kind, int stage, int pipe, int64_t bytes) {
    if (bytes == 0) return;
    regions.push_back({kind, stage, pipe, end, bytes});
    end = (end + bytes + kAlign - 1) / kAlign * kAlign;
  };
  int64_t scratch = 0, loss = 0, norm = 0;
  const DeviceList& list = program.lists[device];
  const bool several = program.pipes.size() > 1, shards = program.zero == 1;
  const bool drops = std::any_of(list.body.begin(), list.body.end(),
                                 [](const Instruction& i) { return i.op == Op::kForwardDrop; });
  for (int stage = 0; stage < program.stages; ++stage) {
    const StageLayout layout = LayoutStage(*program.job, stage);
    norm += layout.norm_blocks * sizeof(double);
    for (int pipe : program.PipesOf(stage, device)) {
      const int copy = several ? pipe : -1;
      add(Kind::kWeights, stage, copy, Versions(list) * layout.weights_bytes);
      add(Kind::kWgrad, stage, copy, layout.wgrad_bytes);
      add(Kind::kOptimizer, stage, copy,
          shards && program.Copies() > 1
              ? ShardedOptimizerBytes(BucketsOf(program, stage), program.Copies())
              : layout.optimizer_bytes);
      scratch = std::max(scratch, drops ? layout.drop_scratch_bytes : layout.scratch_bytes);
      loss += layout.loss_bytes * std::count(program.pipe_of.begin(), program.pipe_of.end(), pipe);
    }
  }
  add(Kind::kScratch, -1, -1, scratch);
  add(Kind::kLoss, program.stages - 1, -1, loss);
  add(Kind::kNorm, -1, -1, norm);
  add(Kind::kExchange, -1, -1, ExchangeBytes(program, device));
  return regions;
}

}  // namespace pp

#include "schema/regions.h"

#include <algorithm>

#include "schema/model.h"

namespace pp {
namespace {

// The two ends of a tied embedding exchange their gradients piece by piece.
constexpr int64_t kExchangePiece = 1 << 20;

int64_t ExchangeBytes(const Program& program, const std::vector<int32_t>& held) {
  const ModelConfig& model = program.job->model;
  if (held.empty()) return 0;
  const bool first = held.front() == 0, last = held.back() == program.stages - 1;
  if (!model.tie_word_embeddings || first == last) return 0;
  return std::min(kExchangePiece, int64_t{model.vocab_size} * model.n_embd * 4);
}

}  // namespace

std::vector<Region> RegionsOf(const Program& program, int device) {
  std::vector<Region> regions;
  if (!program.job) return regions;
  int64_t end = 0;
  auto add = [&](Kind kind, int stage, int64_t bytes) {
    if (bytes == 0) return;
    regions.push_back({kind, stage, end, bytes});
    end = (end + bytes + kAlign - 1) / kAlign * kAlign;
  };
  int64_t scratch = 0, loss = 0, norm = 0;
  const std::vector<int32_t> held = program.StagesOf(device);
  const std::vector<Instruction>& body = program.lists[device].body;
  const bool drops = std::any_of(body.begin(), body.end(),
                                 [](const Instruction& i) { return i.op == Op::kForwardDrop; });
  for (int stage = 0; stage < program.stages; ++stage) {
    const StageLayout layout = LayoutStage(*program.job, stage);
    norm += layout.norm_blocks * sizeof(double);
    if (!std::binary_search(held.begin(), held.end(), stage)) continue;
    add(Kind::kWeights, stage, layout.weights_bytes);
    add(Kind::kWgrad, stage, layout.wgrad_bytes);
    add(Kind::kOptimizer, stage, layout.optimizer_bytes);
    scratch = std::max(scratch, drops ? layout.drop_scratch_bytes : layout.scratch_bytes);
    loss += layout.loss_bytes * program.microbatches;
  }
  add(Kind::kScratch, -1, scratch);
  add(Kind::kLoss, program.stages - 1, loss);
  add(Kind::kNorm, -1, norm);
  add(Kind::kExchange, -1, ExchangeBytes(program, held));
  return regions;
}

}  // namespace pp

// Outputs that a stash has because --keep says so: what can be kept, where it lies, and what it
// spares a backward.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "schema/model/layout.h"
#include "schema/model/work.h"
#include "tests/models.h"

namespace pp {
namespace {

using Kinds = std::vector<OperatorKind>;

const std::string kFamilies[] = {"gpt2", "llama", "mistral", "qwen2", "qwen3"};

OperatorKind Activation(const std::string& family) {
  return family == "gpt2" ? OperatorKind::kGelu : OperatorKind::kSwiGlu;
}

Job JobOf(const std::string& family) {
  return {SmallModel(family, true, /*layers=*/12, /*positions=*/16), 2, 16, {5, 7}};
}

TEST_CASE("a model keeps outputs that it has, and that peers do not gather") {
  for (const std::string& family : kFamilies) {
    INFO(family);
    Job job = JobOf(family);
    const auto with = [&](Kinds keep) {
      job.keep = std::move(keep);
      return CheckJob(job).message();
    };
    const OperatorKind own = Activation(family);
    const OperatorKind other = Activation(family == "gpt2" ? "llama" : "gpt2");
    CHECK(with({OperatorKind::kNorm, own}) == "");
    for (const OperatorKind missing : {other, OperatorKind::kLinear})
      CHECK(with({missing}) ==
            fmt::format("--keep: the model has no {} (norm, {})", NameOf(missing), NameOf(own)));
    job.tp = 2;
    CHECK(with({OperatorKind::kNorm, own}) == "");
    job.sequence_parallel = true;
    CHECK(with({own}) == "");
    CHECK(with({OperatorKind::kNorm, own}) ==
          fmt::format("--keep: norm, but with --sequence-parallel peers gather its output when "
                      "they need it ({})",
                      NameOf(own)));
  }
}

// In the stash, and nowhere else: a CFW keeps as much as without.
TEST_CASE("kept outputs take their own bytes of a stash") {
  for (const std::string& family : kFamilies)
    for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16})
      for (const Kinds& recompute : {Kinds{}, {OperatorKind::kAttention}, {OperatorKind::kNorm}})
        for (const int norms : {0, 1}) {
          INFO(family << ", " << norms << " of norms");
          Job job = JobOf(family);
          job.dtype = dtype;
          job.recompute = recompute;
          const StageLayout before[] = {LayoutStage(job, 0), LayoutStage(job, 1)};
          const OperatorKind own = Activation(family);
          job.keep = norms > 0 ? Kinds{OperatorKind::kNorm, own} : Kinds{own};
          for (const int s : {0, 1}) {
            const StageLayout after = LayoutStage(job, s);
            const int64_t norms_of_stage = 2 * after.layers + (after.last ? 1 : 0);
            const int64_t floats = norms * norms_of_stage * job.model.hidden_size +
                                   after.layers * job.model.intermediate_size;
            CHECK(after.stash_bytes - before[s].stash_bytes ==
                  floats * job.tokens() * BytesOf(dtype));
            CHECK(after.kept_bytes == before[s].kept_bytes);
            CHECK(after.work_bytes == before[s].work_bytes);
            CHECK(after.scratch_bytes <= before[s].scratch_bytes);
            for (const StageOperator& placed : after.operators) {
              const bool is_norm = norms > 0 && placed.op.kind == OperatorKind::kNorm;
              if (placed.op.kind != own && !is_norm) continue;
              CHECK(placed.of(Keep::kStash).out.area == Area::kStash);
              CHECK(placed.of(Keep::kScratch).out.area == Area::kScratch);
              CHECK(placed.recomputed);
              CHECK(!placed.remade);
            }
          }
        }
}

TEST_CASE("a backward does not read and write again what is kept") {
  for (const std::string& family : kFamilies) {
    INFO(family);
    Job job = JobOf(family);
    const auto of = [&](const Kinds& keep) {
      job.keep = keep;
      return WorkOf(LayoutStage(job, 1), job);
    };
    const double row = 4.0 * static_cast<double>(job.tokens());
    const double parameters = 4.0 * (family == "gpt2" ? 2 : 1) * job.model.hidden_size;
    const double norms = 15 * (2 * row * job.model.hidden_size + parameters);
    // GELU reads what it writes, SwiGLU twice that.
    const double activations = 7 * (family == "gpt2" ? 2 : 3) * row * job.model.intermediate_size;
    const OperatorKind own = Activation(family);
    const StageWork all = of({});
    CHECK(all.weight.bytes - of({OperatorKind::kNorm}).weight.bytes == norms);
    CHECK(all.weight.bytes - of({own}).weight.bytes == activations);
    const StageWork least = of({OperatorKind::kNorm, own});
    CHECK(all.weight.bytes - least.weight.bytes == norms + activations);
    CHECK(all.forward.bytes == least.forward.bytes);
    CHECK(all.input.bytes == least.input.bytes);
    CHECK(all.recompute.bytes == least.recompute.bytes);
  }
}

}  // namespace
}  // namespace pp

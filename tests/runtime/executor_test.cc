// What STEP does on the device: it takes the norm, clips, and changes nothing if the norm is not
// finite.
#include "runtime/model/executor.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "compiler/compile.h"
#include "kernels/threads.h"
#include "runtime/device/cpu_kernels.h"
#include "schema/model/workspace.h"
#include "tests/models.h"

namespace pp {
namespace {

class Stage {
 public:
  explicit Stage(double clip) {
    auto compiled = Compile({.scheme = "gpipe",
                             .shape = {1, 1, 0},
                             .job = {.model = SmallModel("gpt2", /*tied=*/true, /*layers=*/1)}});
    REQUIRE(compiled.ok());
    program_ = std::move(*compiled);
    executor_ =
        MakeExecutor({.program = &program_,
                      .optimizer = {.learning_rate = 0.5, .weight_decay = 0, .grad_clip = clip}},
                     MakeCpuKernels(*program_.job, 1));
    layout_ = LayoutStage(*program_.job, 0);
    weights.assign(layout_.weights_bytes / 4, 1);
    wgrad.assign(layout_.wgrad_bytes / 4, 2);
    moments.assign(layout_.optimizer_bytes / 4, 0);
    norm.resize(layout_.norm_blocks + 1);
  }

  void Run(Op op, int64_t update = 1) {
    StageCall call;
    call.op = op;
    call.stage = 0;
    call.weights = call.weights_old = reinterpret_cast<std::byte*>(weights.data());
    call.wgrad = reinterpret_cast<std::byte*>(wgrad.data());
    call.optimizer = reinterpret_cast<std::byte*>(moments.data());
    call.norm = norm.data();
    call.scratch = reinterpret_cast<std::byte*>(scratch_.data());
    call.update = update;
    executor_->Run(call);
  }

  const Program& program() const { return program_; }
  int64_t elements() const {
    int64_t elements = 0;
    for (const Tensor& tensor : layout_.tensors) elements += tensor.elements();
    return elements;
  }

  std::vector<float> weights, wgrad, moments;
  std::vector<double> norm;

 private:
  Program program_;
  std::unique_ptr<StageExecutor> executor_;
  StageLayout layout_;
  std::vector<float> scratch_ = std::vector<float>(64);
};

TEST_CASE("each further thread takes working space for the kernels") {
  const Stage stage(0);
  const Workspace workspace = WorkspaceOf(*stage.program().job);
  std::vector<std::byte> memory(workspace.bytes);
  for (const int threads : {1, 2, 3})
    CHECK(MakeCpuKernels(*stage.program().job, threads, memory.data())->bytes() ==
          (threads - 1) * workspace.kernel_bytes);
  kernels::SetThreads(1);
}

TEST_CASE("STEP takes the norm of all blocks and writes it after them") {
  Stage stage(0);
  stage.Run(Op::kNormGrad);
  stage.Run(Op::kStep);
  CHECK(stage.norm.back() == Approx(2 * std::sqrt(static_cast<double>(stage.elements()))));
  // AdamW's first update is as large as the learning rate.
  CHECK(stage.weights[0] == Approx(0.5));
  CHECK(stage.moments[0] == Approx(0.1 * 2));
}

TEST_CASE("STEP clips by the norm") {
  Stage stage(1);
  stage.Run(Op::kNormGrad);
  stage.Run(Op::kStep);
  CHECK(stage.moments[0] == Approx(0.1 * 2 / stage.norm.back()));
}

TEST_CASE("a STEP whose norm is no number leaves weights and moments as they are") {
  const float bad = GENERATE(NAN, INFINITY);
  Stage stage(1);
  stage.wgrad[7] = bad;
  stage.Run(Op::kNormGrad);
  const std::vector<float> weights = stage.weights, moments = stage.moments;
  stage.Run(Op::kStep);
  CHECK(!std::isfinite(stage.norm.back()));
  CHECK(stage.weights == weights);
  CHECK(stage.moments == moments);
}

}  // namespace
}  // namespace pp

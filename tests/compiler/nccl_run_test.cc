// The CUDA backend with NCCL between its ranks, without a GPU: every scheme trains over a fake of
// NCCL (fake_nccl.h) with as few communicators as the plan's proof finds, and what would hang or be
// wrong with a real one is found.
#include <catch2/catch.hpp>
#include <climits>
#include <limits>
#include <utility>

#include "compiler/scheme.h"
#include "runtime/comm/clock.h"
#include "runtime/comm/communicators.h"
#include "tests/cuda_runs.h"
#include "tests/fake_cuda.h"
#include "tests/fake_nccl.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

// Like NCCL, except for what a plant does.
class PlantedNccl : public Nccl {
 public:
  explicit PlantedNccl(std::unique_ptr<Nccl> inner) : inner_(std::move(inner)) {}
  Result<Id> MakeId() override { return inner_->MakeId(); }
  Result<Communicator> Create(const Id& id, int member, int members) override {
    return inner_->Create(id, member, members);
  }
  Status Enqueue(Communicator communicator, std::span<const Operation> operations,
                 Stream stream) override {
    return inner_->Enqueue(communicator, operations, stream);
  }
  Status Poll(Communicator communicator, bool* done) override {
    return inner_->Poll(communicator, done);
  }
  void Abort(std::span<const Communicator> communicators) override { inner_->Abort(communicators); }

 protected:
  const std::unique_ptr<Nccl> inner_;
};

void CompareWithOthers(CompileOptions options, const std::string& family) {
  const Program program = CompileForCuda(&options, family);
  const int steps = StepsToCompare(program);
  const KeptReport report = RunOnCuda(program, {.messages = Messages::kNccl, .steps = steps});
  const KeptReport other = RunOnCuda(
      program,
      {.messages = options.job.dtype == Dtype::kFp32 ? Messages::kCopies : Messages::kStaged,
       .steps = steps});
  INFO(options.scheme << " " << family << " " << NameOf(options.job.dtype) << ": "
                      << report.status.message());
  REQUIRE(report.status.ok());
  REQUIRE(static_cast<int>(report.steps.size()) == steps);
  CHECK(Difference(report, other) == 0);
}

Program SmallPlan(CompileOptions options) {
  options.costs = "f=1";  // the order of a plan does not follow the model's work
  options.job.model = CudaRunModel("gpt2", true);
  return MustCompile(options);
}

// The outcome of a run in which the ranks from `first` on have NCCL of kind T.
template <typename T>
std::string ErrorWith(const Program& program, int first = 1) {
  const auto plant = [first](int rank, std::unique_ptr<Nccl> nccl) -> std::unique_ptr<Nccl> {
    if (rank < first) return nccl;
    return std::make_unique<T>(std::move(nccl));
  };
  return RunOnCuda(program, {.messages = Messages::kNccl, .around_nccl = plant}).status.message();
}

struct WrongMember : PlantedNccl {
  using PlantedNccl::PlantedNccl;
  Result<Communicator> Create(const Id& id, int member, int members) override {
    return inner_->Create(id, (member + 1) % members, members);
  }
};

// Each rank creates communicators with its own id.
struct WrongId : PlantedNccl {
  using PlantedNccl::PlantedNccl;
  Result<Communicator> Create(const Id&, int member, int members) override {
    return inner_->Create(*inner_->MakeId(), member, members);
  }
};

struct NeverMade : PlantedNccl {
  using PlantedNccl::PlantedNccl;
  Result<Communicator> Create(const Id&, int, int) override { return Communicator(nullptr); }
  Status Poll(Communicator communicator, bool* done) override {
    const Status status = inner_->Poll(communicator, done);
    *done = true;
    return status;
  }
  void Abort(std::span<const Communicator>) override {}
};

// One operation after the other, although they belong together.
struct NoGroups : PlantedNccl {
  using PlantedNccl::PlantedNccl;
  Status Enqueue(Communicator communicator, std::span<const Operation> operations,
                 Stream stream) override {
    for (const Operation& operation : operations) {
      PP_RETURN_IF_ERROR(inner_->Enqueue(communicator, {&operation, 1}, stream));
      for (bool done = false; !done;) PP_RETURN_IF_ERROR(inner_->Poll(communicator, &done));
    }
    return {};
  }
};

struct Short : PlantedNccl {
  using PlantedNccl::PlantedNccl;
  Status Enqueue(Communicator communicator, std::span<const Operation> operations,
                 Stream stream) override {
    std::vector<Operation> shorter(operations.begin(), operations.end());
    for (Operation& operation : shorter) operation.bytes = (operation.bytes + 1) / 2;
    return inner_->Enqueue(communicator, shorter, stream);
  }
};

// Its kPolls-th answer about its second communicator is that something is wrong.
template <int kPolls>
struct Failing : PlantedNccl {
  using PlantedNccl::PlantedNccl;
  Result<Communicator> Create(const Id& id, int member, int members) override {
    auto made = inner_->Create(id, member, members);
    if (++made_ == 2 && made.ok()) second_ = *made;
    return made;
  }
  Status Poll(Communicator communicator, bool* done) override {
    if (communicator == second_ && ++polls_ >= kPolls)
      return Status::Failed("NCCL: remote process exited");
    return inner_->Poll(communicator, done);
  }
  Communicator second_ = nullptr;
  int made_ = 0, polls_ = 0;
};

// The second communicator's messages never arrive, so that soon all wait. Then the answer about it
// is that something is wrong.
struct Silent : Failing<INT_MAX> {
  using Failing<INT_MAX>::Failing;
  Status Enqueue(Communicator communicator, std::span<const Operation> operations,
                 Stream stream) override {
    if (communicator != second_ || operations[0].bytes == 1)
      return inner_->Enqueue(communicator, operations, stream);
    fails_at_ = SteadySeconds() + 0.5;
    FakeWait(stream, [] { return false; });
    return {};
  }
  Status Poll(Communicator communicator, bool* done) override {
    if (communicator == second_ && SteadySeconds() > fails_at_)
      return Status::Failed("NCCL: remote process exited");
    return inner_->Poll(communicator, done);
  }
  double fails_at_ = std::numeric_limits<double>::infinity();
};

}  // namespace

// Those runs are compared with the CPU's, too (cuda_run_test.cc): each scheme with each family and
// each type, and each family with each type.
TEST_CASE("every scheme has the same bits over NCCL as without it") {
  bool fp32 = true;
  for (const Scheme& scheme : Schemes()) {
    for (const char* family : {"gpt2", "llama"}) {
      CompareWithOthers({.scheme = std::string(scheme.name),
                         .shape = {2, 4, 0},
                         .job = {.dtype = fp32 ? Dtype::kFp32 : Dtype::kBf16}},
                        family);
      fp32 = !fp32;
    }
    fp32 = !fp32;
  }
}

TEST_CASE("replicas, shards and peers over NCCL") {
  CompareWithOthers({.scheme = "1f1b", .shape = {2, 4}, .replicas = 2, .zero = 1}, "gpt2");
  CompareWithOthers({.scheme = "chimera", .shape = {2, 4}, .replicas = 2}, "llama");
  CompareWithOthers(
      {.scheme = "zb-v", .shape = {2, 4, 0}, .job = {.tp = 2, .sequence_parallel = true}}, "llama");
  CompareWithOthers(
      {.scheme = "zb-h1", .shape = {2, 4}, .replicas = 2, .job = {.tp = 2, .dtype = Dtype::kFp16}},
      "gpt2");
}

// A GPU may load a kernel at its first use, and waits then for those that wait for other ranks.
TEST_CASE("kernels and products that are not loaded before the first message are found") {
  const Program program = SmallPlan({.scheme = "1f1b", .shape = {2, 4}});
  for (const auto& [late, error] :
       {std::pair{FakeCudaArgs::Late::kKernels, "a kernel is loaded"},
        std::pair{FakeCudaArgs::Late::kProducts, "a product is loaded"}}) {
    int found = 0;
    for (const unsigned seed : {1, 2, 3, 4, 5}) {
      const KeptReport report =
          RunOnCuda(program, {.messages = Messages::kNccl, .seed = seed, .late = late});
      const std::string& message = report.status.message();
      found += message.ends_with(std::string(error) + " while a stream waits for another rank");
      CHECK(RunOnCuda(program, {.messages = Messages::kNccl, .seed = seed}).status.ok());
    }
    CHECK(found > 0);
  }
}

TEST_CASE("validation and samples over NCCL") {
  const Program program = SmallPlan({.scheme = "zb-v", .shape = {2, 4, 0}});
  const auto run = [&](Messages messages) {
    return RunOnCuda(program, {.messages = messages, .validates = true});
  };
  const KeptReport copies = run(Messages::kCopies), report = run(Messages::kNccl);
  INFO(report.status.message());
  REQUIRE(report.steps.size() == kCudaRunSteps);
  for (size_t i = 0; i < report.steps.size(); ++i)
    CHECK(report.steps[i].val_loss.value() == copies.steps[i].val_loss.value());
  CHECK(report.sample.size() > 1);
  CHECK(report.sample == copies.sample);
}

TEST_CASE("sharings that the proof allows compute the same bits, and one that it refuses hangs") {
  const Program program = SmallPlan({.scheme = "1f1b", .shape = {4, 6}});
  const auto run = [&](nccl::Sharing sharing) {
    return RunOnCuda(
        program,
        {.messages = Messages::kNccl, .seed = 3, .sharings = nccl::Sharings{.most = sharing}});
  };
  const KeptReport copies = RunOnCuda(program, {});
  REQUIRE(copies.status.ok());
  for (const nccl::Sharing sharing : {nccl::Sharing::kDirection, nccl::Sharing::kKind}) {
    const KeptReport report = run(sharing);
    INFO(report.status.message());
    REQUIRE(report.steps.size() == copies.steps.size());
    for (size_t i = 0; i < copies.steps.size(); ++i)
      CHECK(report.steps[i].loss == copies.steps[i].loss);
  }
  CHECK_THAT(ProveForNccl(program, {.sharing = nccl::Sharing::kPair}).status().message(),
             Catch::Contains("deadlock"));
  CHECK_THAT(run(nccl::Sharing::kPair).status.message(),
             Catch::Contains("NCCL: deadlock: members 0, 1 of a communicator wait for each other"));
}

TEST_CASE("communicators: who shares one, in one order on all ranks") {
  const Program program = SmallPlan({.scheme = "1f1b", .shape = {4, 4}, .replicas = 2});
  const nccl::Sharings pairs{.most = nccl::Sharing::kPair};
  const std::vector<Group> groups = {{4, 5, 6, 7}, {1, 5}};
  const auto middle = CommunicatorsOf(program, pairs, 5, groups);  // device 1 of the second replica
  REQUIRE(middle.size() == 3);
  CHECK(middle[0].members == std::vector<int>{4, 5});
  CHECK(middle[1].members == std::vector<int>{5, 6});
  CHECK(middle[2].members == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(middle[0].ports ==
        std::vector<Port>{{Way::kRecv, Channel::kAct, 4}, {Way::kSend, Channel::kGrad, 4}});
  CHECK(middle[2].ports.size() == 8);  // both ways with 4, 6, 7 and 1
  const auto all = CommunicatorsOf(program, {.most = nccl::Sharing::kAll}, 5, groups);
  CHECK(all[0].members == std::vector<int>{4, 5, 6, 7});
}

TEST_CASE(
    "wrong members, communicators that are not made, missing groups, errors: found, no hang") {
  const Program program = SmallPlan({.scheme = "1f1b", .shape = {2, 4}});
  const auto ends = [](const char* text) { return Catch::EndsWith(text); };
  CHECK(ErrorWith<PlantedNccl>(program) == "");
  CHECK_THAT(ErrorWith<WrongMember>(program), ends("two ranks are member 0 of a communicator"));
  CHECK_THAT(ErrorWith<WrongId>(program),
             ends("deadlock: all ranks make communicators, none the same"));
  CHECK_THAT(ErrorWith<NeverMade>(program), ends("operations on a communicator that is not made"));
  CHECK_THAT(ErrorWith<NoGroups>(program, 0),
             ends("deadlock: members 0, 1 of a communicator wait for each other"));
  CHECK_THAT(ErrorWith<Short>(program), ends(" of one message"));
  // While it is created, with the first bytes, in a step, and when nothing moves any more.
  const char* failed = "rank 1: communicator of ranks 0, 1: NCCL: remote process exited";
  CHECK(ErrorWith<Failing<1>>(program) == failed);
  CHECK(ErrorWith<Failing<4>>(program) == failed);
  CHECK(ErrorWith<Failing<30>>(program) == failed);
  CHECK(ErrorWith<Silent>(program) == failed);
}

}  // namespace pp

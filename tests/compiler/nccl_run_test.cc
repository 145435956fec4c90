// The CUDA backend with NCCL between its ranks, without a GPU: every scheme trains over a fake of
// NCCL (fake_nccl.h) with as few communicators as the plan's proof finds, and what would hang or be
// wrong with a real one is found.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <utility>

#include "compiler/scheme.h"
#include "runtime/comm/communicators.h"
#include "runtime/device/cpu_device.h"
#include "runtime/device/cuda/cuda_device.h"
#include "runtime/plan/bind_collective.h"
#include "tests/cuda_runs.h"
#include "tests/fake_nccl.h"
#include "tests/must_compile.h"
#include "tests/planted_nccl.h"

namespace pp {
namespace {

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

TEST_CASE("replicas, shards, peers, kept outputs and blocking messages over NCCL") {
  CompareWithOthers({.scheme = "1f1b", .shape = {2, 4}, .p2p = P2p::kBlocking}, "gpt2");
  CompareWithOthers(
      {.scheme = "interleaved",
       .shape = {2, 4, 2},
       .job = {.keep = {OperatorKind::kNorm, OperatorKind::kSwiGlu}, .dtype = Dtype::kBf16}},
      "llama");
  CompareWithOthers({.scheme = "1f1b", .shape = {2, 4}, .replicas = 2, .zero = 1}, "gpt2");
  CompareWithOthers({.scheme = "chimera", .shape = {2, 4}, .replicas = 2}, "llama");
  CompareWithOthers({.scheme = "1f1b",
                     .shape = {2, 4},
                     .replicas = 2,
                     .zero = 1,
                     .rank_order = RankOrder::kTpDpPp,
                     .job = {.tp = 2}},
                    "gpt2");
  CompareWithOthers(
      {.scheme = "zb-v", .shape = {2, 4, 0}, .job = {.tp = 2, .sequence_parallel = true}}, "llama");
  CompareWithOthers(
      {.scheme = "zb-h1", .shape = {2, 4}, .replicas = 2, .job = {.tp = 2, .dtype = Dtype::kFp16}},
      "gpt2");
}

TEST_CASE("a queue that does not wait for another is found") {
  const Program program = SmallPlan({.scheme = "1f1b", .shape = {2, 4}});
  const KeptReport right = RunOnCuda(program, {});
  REQUIRE(right.status.ok());
  const auto differs = [&](unsigned seed, Lost lost) {
    const KeptReport run =
        RunOnCuda(program, {.messages = Messages::kNccl,
                            .seed = seed,
                            .around_cuda = [lost](int, std::unique_ptr<CudaDriver> cuda) {
                              return std::make_unique<ForgetfulCuda>(std::move(cuda), lost);
                            }});
    return !run.status.ok() || Difference(run, right) != 0;
  };
  for (const Lost lost : {Lost::kFork, Lost::kJoin, Lost::kStart, Lost::kArrival}) {
    bool found = false;
    for (unsigned seed = 1; seed <= 8 && !found; ++seed) found = differs(seed, lost);
    INFO(static_cast<int>(lost));
    CHECK(found);
  }
  for (const unsigned seed : {1, 2}) CHECK_FALSE(differs(seed, Lost::kNothing));
}

TEST_CASE("a bucket's sum is two groups, whatever its size") {
  // One stage of one layer, two replicas: a bucket, the norm of all ranks being their own.
  CompileOptions options{.scheme = "gpipe", .shape = {1, 1}, .replicas = 2};
  options.job.model = CudaRunModel("gpt2", true);
  const Program program = MustCompile(options);
  int64_t reductions = 0;
  for (const Instruction& i : program.lists[0].body)
    reductions += i.op == Op::kReduceGrad || i.op == Op::kReduceTied;
  REQUIRE(reductions > 0);
  std::vector<int64_t> sizes;
  const KeptReport report = RunOnCuda(
      program, {.messages = Messages::kNccl,
                .steps = 3,
                .around_nccl = [&](int rank, std::unique_ptr<Nccl> nccl) -> std::unique_ptr<Nccl> {
                  if (rank != 0) return nccl;
                  return std::make_unique<CountingNccl>(std::move(nccl), &sizes);
                }});
  REQUIRE(report.status.ok());
  // The first is that of the first bytes.
  CHECK(static_cast<int64_t>(sizes.size()) == 1 + 3 * 2 * reductions);
}

TEST_CASE("more streams than a GPU has hardware queues are found") {
  const Program program = SmallPlan({.scheme = "1f1b", .shape = {2, 4}});
  const int needed = ProveForNccl(program, {})->most.Queues() - 1;  // the fake has no default one
  const auto run = [&](int queues) {
    return RunOnCuda(program, {.messages = Messages::kNccl, .steps = 1, .hardware_queues = queues})
        .status;
  };
  CHECK(run(needed).ok());
  CHECK_THAT(run(needed - 1).message(),
             Catch::Contains(std::to_string(needed) + " streams, and hardware queues for " +
                             std::to_string(needed - 1)));
}

TEST_CASE("the proof counts the connections that the runtime makes") {
  const auto check = [](CompileOptions options) {
    const Program program = SmallPlan(std::move(options));
    const nccl::Needs needs = *ProveForNccl(program, {});
    const Topology topology = TopologyOf(program);
    int64_t most = 0;
    for (int rank = 0; rank < topology.ranks(); ++rank) {
      std::vector<Group> groups;
      const DeviceList& list = program.lists[topology.PlaceOf(rank).device];
      const std::unique_ptr<Device> memory = MakeCpuDevice();
      REQUIRE(memory->Allocate(list.arena_bytes).ok());
      for (const Instruction& i : list.body)
        if (Info(i.op).lane == Lane::kReduce)
          groups.push_back(BindCollective(program, topology, rank, i, *memory).group);
      most = std::max<int64_t>(most,
                               CountPeers(CommunicatorsOf(program, needs.sharings, rank, groups)));
    }
    INFO(program.scheme << " dp " << program.replicas << " tp " << topology.tp);
    CHECK(needs.peers == most);
  };
  for (const int replicas : {1, 2, 3})
    for (const int tp : {1, 2})
      for (const bool clip : {true, false})
        for (const int zero : {0, 1})
          for (const char* scheme : {"1f1b", "chimera", "zb-v"})
            check({.scheme = scheme,
                   .shape = {2, 4, 0},
                   .replicas = replicas,
                   .zero = zero,
                   .clip = clip,
                   .rank_order = clip ? RankOrder::kTpPpDp : RankOrder::kTpDpPp,
                   .job = {.tp = tp}});
}

TEST_CASE("memory that NCCL takes beside the plan's must be there before the first step") {
  const Program program =
      SmallPlan({.scheme = "1f1b", .shape = {2, 4}, .job = {.backend = DeviceKind::kCuda}});
  const int64_t peers = ProveForNccl(program, {})->peers;
  CHECK(peers == 3);  // one for each direction, and one for reductions
  const int64_t needed = std::ranges::max(PlannedBytes(program)) + nccl::BytesOf(peers);
  const auto run = [&](int64_t memory) {
    return RunOnCuda(program, {.messages = Messages::kNccl, .steps = 1, .memory = memory}).status;
  };
  CHECK(run(needed).ok());
  CHECK_THAT(run(needed - 1000).message(),
             Catch::Contains("NCCL takes some 540000000 bytes of the GPU's memory beside"));
}

// The second rank is slow, so that the first one's device waits for it while the host goes on.
TEST_CASE("the host does not fill a stream behind what waits for another rank") {
  const Program program = SmallPlan({.scheme = "gpipe", .shape = {2, 16}});
  const auto slow = [](int rank, std::unique_ptr<CudaDriver> cuda) -> std::unique_ptr<CudaDriver> {
    if (rank == 0) return cuda;
    return std::make_unique<SlowCuda>(std::move(cuda));
  };
  const KeptReport report = RunOnCuda(
      program, {.messages = Messages::kNccl, .steps = 2, .room = 700, .around_cuda = slow});
  CHECK(report.status.message() == "");
}

// All of them: run with [.all].
TEST_CASE("every scheme, family and type over NCCL", "[.all]") {
  for (const Scheme& scheme : Schemes())
    for (const char* family : {"gpt2", "llama", "mistral", "qwen2", "qwen3"})
      for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16, Dtype::kFp16}) {
        // PipeDream takes no norm, which loss scaling needs.
        if (dtype == Dtype::kFp16 && scheme.name.starts_with("pipedream")) continue;
        CompareWithOthers(
            {.scheme = std::string(scheme.name), .shape = {2, 4, 0}, .job = {.dtype = dtype}},
            family);
      }
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
  Program other = program;  // rank 5 is device 2 of the second replica
  other.rank_order = RankOrder::kTpDpPp;
  const auto last = CommunicatorsOf(other, pairs, 5, groups);
  CHECK(last[0].members == std::vector<int>{3, 5});
  CHECK(last[1].members == std::vector<int>{5, 7});
  CHECK(last[1].ports ==
        std::vector<Port>{{Way::kSend, Channel::kAct, 7}, {Way::kRecv, Channel::kGrad, 7}});
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
  CHECK(ErrorWith<Failing<2>>(program) == failed);
  CHECK(ErrorWith<Failing<5>>(program) == failed);
  CHECK(ErrorWith<Silent>(program) == failed);
}

}  // namespace pp
